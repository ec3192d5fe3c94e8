"""Makes a small base model of the local scales: `python -m experiments.pretrain --out=assets/base`.

Resumable: the same command continues from its last checkpoint in --work.
"""

import dataclasses
import pathlib

from absl import app, flags, logging

from sage_jax.training.base_model import CORPORA, BaseModelSettings, train_base_model

_OUT = flags.DEFINE_string("out", "assets/base", "Folder for the model, its tokenizer and its card.")
_WORK = flags.DEFINE_string("work", "runs/base_model", "Folder for checkpoints.")
_CORPUS = flags.DEFINE_enum("corpus", BaseModelSettings.corpus, sorted(CORPORA), "What it is trained on.")
_UPDATES = flags.DEFINE_integer("updates", BaseModelSettings.updates, "Optimizer steps.", lower_bound=1)
_COPY = flags.DEFINE_integer("copy_updates", 0, "The first steps, on copying alone.", lower_bound=0)
_TOKENS = flags.DEFINE_integer("tokens", BaseModelSettings.tokens, "Tokens of a step.", lower_bound=1)
_SHORT = flags.DEFINE_integer("short_rows", BaseModelSettings.short_rows, "Longest conversation at first, in tokens.")
_LONG = flags.DEFINE_integer("long_rows", BaseModelSettings.long_rows, "Longest conversation later, in tokens.")
_VOCAB = flags.DEFINE_integer("vocab_size", BaseModelSettings.vocab_size, "Entries of the tokenizer.", lower_bound=1)
_START = flags.DEFINE_string("start", BaseModelSettings.start, "Model folder to go on from; empty is none.")
_RATE = flags.DEFINE_float("learning_rate", BaseModelSettings.learning_rate, "Peak learning rate.", lower_bound=0.0)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of initialisation and corpus.")


def main(argv: list[str]) -> None:
    """Trains, or continues."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    settings = dataclasses.replace(
        BaseModelSettings(),
        corpus=_CORPUS.value,
        updates=_UPDATES.value,
        copy_updates=_COPY.value,
        tokens=_TOKENS.value,
        short_rows=_SHORT.value,
        long_rows=_LONG.value,
        learning_rate=_RATE.value,
        vocab_size=_VOCAB.value,
        start=_START.value,
        seed=_SEED.value,
    )
    values = train_base_model(settings, pathlib.Path(_WORK.value), pathlib.Path(_OUT.value))
    print(f"wrote {_OUT.value}: loss {values['sft/loss']:.3f}, accuracy {values['sft/accuracy']:.3f}")


if __name__ == "__main__":
    app.run(main)
