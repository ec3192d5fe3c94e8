"""Makes the small editor of Skill-R1's local scale: `python -m experiments.make_editor --out=assets/editor`."""

import dataclasses
import pathlib

from absl import app, flags, logging

from sage_jax.training.editor_model import EditorModelSettings, make_editor_model

_OUT = flags.DEFINE_string("out", "assets/editor", "Folder for the model, its tokenizer and its card.")
_UPDATES = flags.DEFINE_integer("updates", EditorModelSettings.updates, "Optimizer steps.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of initialisation and lessons.")


def main(argv: list[str]) -> None:
    """Trains and writes."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    settings = dataclasses.replace(EditorModelSettings(), updates=_UPDATES.value, seed=_SEED.value)
    values = make_editor_model(settings, pathlib.Path(_OUT.value))
    print(f"wrote {_OUT.value}: loss {values['sft/loss']:.3f}, accuracy {values['sft/accuracy']:.3f}")


if __name__ == "__main__":
    app.run(main)
