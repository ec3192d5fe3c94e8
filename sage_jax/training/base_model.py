"""Pre-trains the small base models that local scales start from, each on an endless corpus of its own.

Induction (copying the named thing) is what a small model learns late; here it forms within the first half million
tokens, because layer 0 starts with heads that look 1 to 4 tokens back, exercises and short contexts come first, and
thoughts spell out the fact that each action depends on.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import random
import time

import jax

from sage_jax.agents.chat import ChatTemplate
from sage_jax.checkpoints import Checkpointer
from sage_jax.data import base_corpus, code_corpus, shopping
from sage_jax.data.packing import MicroBatches, Sequence, micro_batches, pack
from sage_jax.data.sft import conversation_sequence, text_encoder
from sage_jax.data.word_tokenizer import build_tokenizer
from sage_jax.errors import ConfigError
from sage_jax.metrics.progress import show_progress
from sage_jax.models import hf
from sage_jax.models.config import ModelConfig
from sage_jax.models.initialisation import add_previous_token_heads
from sage_jax.models.transformer import forward, head_weights, init_params
from sage_jax.seeding import derive_seed, jax_key
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, make_update_step, read_metrics

# Modules with conversations, and corpus_words or a tokenizer of their own.
CORPORA = {"code": code_corpus, "household": base_corpus, "shopping": shopping}
_COPY_ROWS, _COPY_TOKENS = 128, 1024  # of an update on copying: small ones, since their number is what counts
_SHORTEST_ROW = 64  # tokens; shorter rows might never be offered a conversation that fits


@dataclasses.dataclass(frozen=True)
class BaseModelSettings:
    """What makes the base model; the card repeats all of it.

    Attributes:
      corpus: one of CORPORA.
      updates: optimizer steps.
      tokens: tokens of one update, packed into rows.
      copy_updates: how many of them, the first ones, are spent on the corpus's `copy_exercise` alone.
      short_rows, long_rows: row length in tokens, before and after `short_share` of the updates.
      learning_rate: peak, with Muon's update scaled to AdamW's.
      seed: of the initialisation and of the corpus.
      save_every: updates between checkpoints.
      start: model folder to go on from, of the same sizes; empty starts from nothing.
    """

    corpus: str = "household"
    updates: int = 4000
    tokens: int = 4096
    copy_updates: int = 0
    short_rows: int = 512
    long_rows: int = 1024
    short_share: float = 0.6
    learning_rate: float = 3e-3
    vocab_size: int = 1024
    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 4
    seed: int = 0
    save_every: int = 200
    start: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigError for an unknown corpus and for sizes that give no update."""
        if self.corpus not in CORPORA:
            raise ConfigError(f"corpus={self.corpus!r}: must be one of {', '.join(CORPORA)}")
        for name in ("updates", "save_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("short_rows", "long_rows"):
            if not _SHORTEST_ROW <= getattr(self, name) <= self.tokens:
                raise ConfigError(
                    f"{name}={getattr(self, name)}: an update of tokens={self.tokens} needs rows of "
                    f"{_SHORTEST_ROW} to {self.tokens} tokens"
                )
        if not 0 <= self.copy_updates < self.updates:
            raise ConfigError(f"copy_updates={self.copy_updates}: must be from 0 to updates - 1 = {self.updates - 1}")
        if self.copy_updates and not hasattr(CORPORA[self.corpus], "copy_exercise"):
            raise ConfigError(
                f"copy_updates={self.copy_updates}: corpus={self.corpus!r} has no copy_exercise; set it to 0"
            )
        if self.hidden_size % 64:
            raise ConfigError(f"hidden_size={self.hidden_size}: heads of 32 in two groups need a multiple of 64")

    def model(self) -> ModelConfig:
        """Returns the model: a Llama decoder with attention biases, heads of 32, keys and values in two groups.

        Not Qwen2, whose q, k and v biases would do: transformers 5 gives every tokenizer beside a qwen2 config
        Qwen2's own text splitting, which a word-level vocabulary does not survive.
        """
        return ModelConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_layers,
            num_heads=self.hidden_size // 32,
            num_kv_heads=2,
            head_dim=32,
            rope_theta=10000.0,
            qkv_bias=True,
            o_bias=True,
            tie_embeddings=True,
            rms_eps=1e-6,
            max_position=4096,
        )


def train_base_model(settings: BaseModelSettings, work: pathlib.Path, out: pathlib.Path) -> dict[str, float]:
    """Trains (or continues) in `work`, then writes model, tokenizer and card to `out`.

    Returns:
      The metrics that were read last; those of a finished run when there is nothing left to do.

    Raises:
      CheckpointError: `work` holds a run of other settings.
    """
    config = settings.model()
    tokenizer = _tokenizer(settings)
    optimizer = make_optimizer(
        OptimizerOptions(
            name="muon",
            learning_rate=settings.learning_rate,
            schedule="cosine",
            warmup_steps=min(100, settings.updates // 10),
            total_steps=settings.updates,
            final_fraction=0.05,
            b2=0.98,
        )
    )
    model = functools.partial(forward, config, unroll=True)
    update = make_update_step(model, head_weights, optimizer, LossOptions(kind="sft"))
    state = TrainState.create(_initial_params(settings, config), optimizer)
    started, seconds, values = time.monotonic(), 0.0, {}
    with Checkpointer(work / "checkpoints", fingerprint=dataclasses.asdict(settings)) as checkpointer:
        if checkpointer.latest() is not None:
            restored = checkpointer.restore(state)
            state, values = restored.arrays, restored.document.get("metrics", {})
            seconds = restored.document.get("seconds", 0.0)
        done = int(state.step)
        with show_progress("base model", settings.updates, done=done) as progress:
            for step in range(done, settings.updates):
                state, metrics = update(state, _batch(settings, tokenizer, step))
                if step % 20 == 19 or step + 1 == settings.updates:
                    values = read_metrics(metrics, state.params, step=step)
                shown = {"loss": values.get("sft/loss", 0), "accuracy": values.get("sft/accuracy", 0)}
                progress.advance(1, shown)
                if (step + 1) % settings.save_every == 0 or step + 1 == settings.updates:
                    document = {"settings": dataclasses.asdict(settings), "metrics": values}
                    checkpointer.save(step + 1, state, document | {"seconds": seconds + time.monotonic() - started})
    _write(settings, config, state.params, tokenizer, out, values | {"seconds": seconds + time.monotonic() - started})
    return values


def _tokenizer(settings: BaseModelSettings):
    corpus = CORPORA[settings.corpus]
    if hasattr(corpus, "make_tokenizer"):
        return corpus.make_tokenizer(settings.vocab_size)
    return build_tokenizer(corpus.corpus_words(), settings.vocab_size)


def _initial_params(settings: BaseModelSettings, config: ModelConfig):
    if settings.start:
        found, params = hf.load(pathlib.Path(settings.start))
        if found.vocab_size != config.vocab_size or found.hidden_size != config.hidden_size:
            raise ConfigError(
                f"start={settings.start!r}: a vocabulary of {found.vocab_size} and width {found.hidden_size} where "
                f"{config.vocab_size} and {config.hidden_size} are wanted"
            )
        return params
    params = init_params(config, jax_key(settings.seed, "base_model_init"))
    params = add_previous_token_heads(params, config, kv_head=0, offsets=(1, 2))
    return add_previous_token_heads(params, config, kv_head=1, offsets=(3, 4))


def _batch(settings: BaseModelSettings, tokenizer, step: int) -> MicroBatches:
    """Returns the batch of one update, a function of (seed, step) alone; conversations that do not fit are redrawn."""
    encode, template = _encoder(tokenizer)
    rng = random.Random(derive_seed(settings.seed, "base_corpus", step))
    corpus = CORPORA[settings.corpus]
    if step < settings.copy_updates:
        row_length, rows = _COPY_ROWS, _COPY_TOKENS // _COPY_ROWS
        stream = iter(lambda: corpus.copy_exercise(rng), None)
    else:
        progress = (step - settings.copy_updates) / (settings.updates - settings.copy_updates)
        row_length = settings.short_rows if progress < settings.short_share else settings.long_rows
        rows = settings.tokens // row_length
        stream = corpus.conversations(rng, lambda: progress)
    sequences: list[Sequence] = []
    room, misses = [row_length] * rows, 0
    while misses < 6 or not sequences:
        sequence = conversation_sequence(next(stream), encode, template, len(sequences))
        if len(sequence.ids) > row_length:
            continue  # a question of length, not of room
        row = next((i for i, left in enumerate(room) if left >= len(sequence.ids)), None)
        if row is None:
            misses += 1
            continue
        room[row] -= len(sequence.ids)
        sequences.append(sequence)
    return micro_batches(pack(sequences, row_length=row_length, row_multiple=rows), rows, capacity_multiple=512)


@functools.lru_cache(maxsize=1)
def _encoder(tokenizer):
    return text_encoder(tokenizer), ChatTemplate.from_tokenizer(tokenizer)


def _write(
    settings: BaseModelSettings, config: ModelConfig, params, tokenizer, out: pathlib.Path, values: dict
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    hf.save(out, config, jax.device_get(params), dtype="float32")
    tokenizer.save_pretrained(out)
    weights = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    card = {"settings": dataclasses.asdict(settings), "metrics": values, "sha256": weights}
    (out / "card.json").write_text(json.dumps(card, indent=2) + "\n")
