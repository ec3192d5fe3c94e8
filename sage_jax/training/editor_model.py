"""Makes the small editor of the local scale: it writes well-formed skills, and knows little of what helps."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import random

import jax

from sage_jax.agents.chat import ChatTemplate
from sage_jax.data.editor_corpus import STEPS_OF_A_SKILL, editor_words, lessons
from sage_jax.data.packing import MicroBatches, micro_batches
from sage_jax.data.prefixes import pack_shared
from sage_jax.data.sft import conversation_sequence, text_encoder
from sage_jax.data.word_tokenizer import build_tokenizer
from sage_jax.models import hf
from sage_jax.models.config import ModelConfig
from sage_jax.models.initialisation import add_previous_token_heads
from sage_jax.models.transformer import forward, head_weights, init_params
from sage_jax.seeding import derive_seed, jax_key
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, make_update_step, read_metrics

MODEL = ModelConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=32,
    rope_theta=10000.0,
    qkv_bias=True,
    o_bias=True,
    tie_embeddings=True,
    rms_eps=1e-6,
    max_position=1024,
)
COPY_OFFSET = 3 * STEPS_OF_A_SKILL  # two words and a full stop a step, the last stop being the end of the message


@dataclasses.dataclass(frozen=True)
class EditorModelSettings:
    """What makes the editor; the card repeats all of it.

    Attributes:
      updates: optimizer steps.
      rows, row_length: of one update, in tokens.
      prompts, answers: drawn for one update, and answers to each, which share it; what does not fit is left out.
      learning_rate: peak.
      seed: of the initialisation and of the lessons.
    """

    updates: int = 600
    rows: int = 8
    row_length: int = 256
    prompts: int = 18
    answers: int = 4
    learning_rate: float = 4e-3
    seed: int = 0


def make_editor_model(settings: EditorModelSettings, out: pathlib.Path) -> dict[str, float]:
    """Trains the editor and writes model, tokenizer and card to `out`; returns the last metrics."""
    tokenizer = build_tokenizer(editor_words(), MODEL.vocab_size)
    encode, template = text_encoder(tokenizer), ChatTemplate.from_tokenizer(tokenizer)
    params = init_params(MODEL, jax_key(settings.seed, "editor"))
    # One head looks at the token before, one at what stands in the same place of the skill that is to be edited.
    for head, offset in enumerate((1, COPY_OFFSET)):
        params = add_previous_token_heads(params, MODEL, kv_head=head, offsets=(offset,), weight=0.9, length=256)
    rng = random.Random(derive_seed(settings.seed, "editor/lessons"))

    def batch() -> MicroBatches:
        drawn = [lesson for _ in range(settings.prompts) for lesson in lessons(rng, settings.answers)]
        sequences = [conversation_sequence(lesson, encode, template, i) for i, lesson in enumerate(drawn)]
        packed = pack_shared(sequences, row_length=settings.row_length)
        return micro_batches(packed.rows(slice(0, settings.rows)), settings.rows, capacity_multiple=512)

    optimizer = make_optimizer(
        OptimizerOptions(
            learning_rate=settings.learning_rate,
            schedule="cosine",
            warmup_steps=min(20, settings.updates // 5),
            total_steps=settings.updates + 1,
        )
    )
    update = make_update_step(
        functools.partial(forward, MODEL, unroll=True), head_weights, optimizer, LossOptions(kind="sft")
    )
    state, values = TrainState.create(params, optimizer), {}
    for step in range(settings.updates):
        state, metrics = update(state, batch())
        values = read_metrics(metrics, state.params, step=step)
    hf.save(out, MODEL, jax.device_get(state.params), dtype="float32")
    tokenizer.save_pretrained(out)
    card = {"settings": dataclasses.asdict(settings), "loss": values["sft/loss"], "accuracy": values["sft/accuracy"]}
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    return values
