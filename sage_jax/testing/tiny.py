"""A tiny run in which everything is real, for tests: a decoder that can act and review, its tokenizer, settings.

    model = tiny_model(tmp_path / "model")                       # some seconds; share it between tests
    settings = tiny_settings(tmp_path / "run", model, cache)     # generated games of all six families in small rooms

The model is taught the form of act and review turns and nothing about where things are: its actions are seldom
admissible and its tool calls mostly valid, so that rewards and reviews differ inside a group and the bank grows.
"""

from __future__ import annotations

import functools
import pathlib
import random
from typing import Any

import jax

from sage_jax.agents.chat import ChatTemplate, act_text, opening_message, review_message, review_text
from sage_jax.config import configure, to_dataclass
from sage_jax.data import household
from sage_jax.data.base_corpus import corpus_words
from sage_jax.data.packing import MicroBatches, micro_batches, pack
from sage_jax.data.sft import Message, conversation_sequence, text_encoder
from sage_jax.data.word_tokenizer import build_tokenizer
from sage_jax.models import hf
from sage_jax.models.config import ModelConfig
from sage_jax.models.initialisation import add_previous_token_heads
from sage_jax.models.transformer import forward, head_weights, init_params
from sage_jax.seeding import jax_key
from sage_jax.settings import RunSettings
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, make_update_step, read_metrics

MODEL = ModelConfig(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qkv_bias=True,
    max_position=1024,
)

# Small enough that a whole run takes seconds, yet it passes every stage: cold start, groups, reviews, probes, update.
SETTINGS: dict[str, Any] = dict(  # noqa: C408  (reads like the command line)
    scale="tiny",
    source="generated",
    games_train=2,
    games_valid=1,
    max_receptacles=6,
    expert_steps=12,
    env_workers=1,
    max_steps=12,
    act_tokens=16,
    review_tokens=96,
    accept="always",
    rounds=2,
    tasks_per_round=2,
    group_size=3,
    probes=1,
    advantage_eps=1e-6,
    lr=1e-3,
    lr_warmup=0,
    kl_coef=0.01,
    sft_episodes=6,
    sft_epochs=1,
    sft_tokens=1024,
    sft_lr=1e-4,
    eval_episodes=2,
    slots=16,
    max_length=512,
    row_length=512,
    rows_per_micro=2,
    min_micro=4,  # with the next line: one compiled update
    capacity_multiple=1024,
)

_SKILLS = (("search shelf", "start at shelf"), ("open first", "open fridge"), ("use desk", "find pen at desk"))


def tiny_model(folder: pathlib.Path, *, updates: int = 80, seed: int = 0) -> pathlib.Path:
    """Writes a tiny model with its tokenizer as a Hugging Face folder; returns the folder.

    Args:
      folder: made when missing.
      updates: of teaching; 0 leaves random weights, whose turns hold neither action nor tool call.
      seed: of the initialisation.
    """
    tokenizer = build_tokenizer(corpus_words(), MODEL.vocab_size)
    params = init_params(MODEL, jax_key(seed, "tiny"))
    for kv_head, offsets in enumerate(((1, 2), (3, 4))):  # four tokens tell how a turn goes on
        params = add_previous_token_heads(params, MODEL, kv_head=kv_head, offsets=offsets, weight=0.9, length=256)
    if updates:
        params = _teach(params, tokenizer, updates)
    hf.save(folder, MODEL, jax.device_get(params), dtype="float32")
    tokenizer.save_pretrained(folder)
    return folder


def tiny_config(run_dir: pathlib.Path, model: pathlib.Path, cache: pathlib.Path, **values: Any) -> dict[str, Any]:
    """Returns the flat configuration of a tiny run, with `values` in place of those of `SETTINGS`."""
    places = {"run_dir": str(run_dir), "model": str(model), "cache": str(cache)}
    return {**SETTINGS, **places, **values}


def tiny_settings(run_dir: pathlib.Path, model: pathlib.Path, cache: pathlib.Path, **values: Any) -> RunSettings:
    """Returns `tiny_config` as the settings that the library reads. Raises ConfigError for a wrong key or value."""
    return to_dataclass(configure(RunSettings, tiny_config(run_dir, model, cache, **values)), RunSettings)


def lesson(rng: random.Random) -> list[Message]:
    """Returns one conversation of a few acts and a review, in the forms the agent meets."""
    room = household.Household(rng, max_receptacles=4)
    messages: list[Message] = [("user", opening_message(room.first_observation, ()), False)]
    for _ in range(rng.randint(1, 4)):
        place = f"{rng.choice(household.RECEPTACLES)} {rng.randint(1, 2)}"
        act = act_text("look .", "look") if rng.random() < 0.3 else act_text("search .", f"go to {place}")
        messages += [("assistant", act, True), ("user", rng.choice((room.step("look"), "Nothing happens.")), False)]
    message = review_message(family=room.family, success=False, steps=rng.randint(1, 20), titles=())
    title, principle = rng.choice(_SKILLS)
    words = {"title": title, "principle": principle, "when_to_apply": "to search", "evidence": "found at shelf"}
    call = {"name": "propose_skill", "arguments": {"category": "general", **words}}
    if rng.random() < 0.3:
        call = {"name": "keep_skill", "arguments": {"reason": "nothing new"}}
    return [*messages[:-1], ("user", message, False), ("assistant", review_text("done .", call), True)]


def _teach(params: Any, tokenizer: Any, updates: int) -> Any:
    """Returns the parameters after `updates` steps on lessons."""
    encode, template, rng = text_encoder(tokenizer), ChatTemplate.from_tokenizer(tokenizer), random.Random(0)

    def batch() -> MicroBatches:
        packed = pack([conversation_sequence(lesson(rng), encode, template, i) for i in range(8)], row_length=256)
        return micro_batches(packed.rows(slice(0, 4)), 4, capacity_multiple=1024)

    optimizer = make_optimizer(OptimizerOptions(learning_rate=1e-2, warmup_steps=5))
    update = make_update_step(functools.partial(forward, MODEL), head_weights, optimizer, LossOptions(kind="sft"))
    state = TrainState.create(params, optimizer)
    for _ in range(updates):
        state, metrics = update(state, batch())
    read_metrics(metrics, state.params, step=updates)
    return state.params
