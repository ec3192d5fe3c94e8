"""The SFT cold start: a few passes over a set, or over expert episodes on the real engine, before the first rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sage_jax.agents.chat import ChatTemplate
from sage_jax.benchmarks.base import plays_code
from sage_jax.data.code_episodes import code_episodes
from sage_jax.data.expert_episodes import expert_episodes
from sage_jax.data.packing import PackedBatch, Sequence, micro_batches, pack
from sage_jax.data.sft import Message, conversation_sequence, text_encoder
from sage_jax.data.sft_sets import open_set, sft_batches
from sage_jax.errors import ConfigError
from sage_jax.metrics.progress import show_progress
from sage_jax.models.sharding import token_shards
from sage_jax.seeding import derive_seed, numpy_rng
from sage_jax.training.batches import place_batch
from sage_jax.training.optimizer import make_optimizer, sft_options
from sage_jax.training.processes import once
from sage_jax.training.session import Session
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, read_metrics


def cold_start(session: Session) -> tuple[Any, dict[str, float]]:
    """Returns the parameters after SFT on a set or on fresh expert episodes, and the last update's metrics.

    Raises:
      DataError: `sft_data` is no set, or holds a conversation that is longer than a row.
      ConfigError: every expert episode is.
    """
    settings = session.settings
    if not (settings.sft.sft_data or settings.sft.sft_episodes):
        return session.params, {}
    shards = token_shards()
    rows = max(1, settings.sft.sft_tokens // settings.engine.row_length)
    rows += -rows % shards.rows
    updates, batches = (_set_batches if settings.sft.sft_data else _expert_batches)(session, rows)
    optimizer = make_optimizer(sft_options(settings, updates))
    update = session.make_update(optimizer, LossOptions(kind="sft"))
    state, values = TrainState.create(session.params, optimizer), {}
    with show_progress("cold start", updates) as progress:
        for batch in batches:
            micro = micro_batches(batch, rows, capacity_multiple=rows * settings.engine.row_length, shards=shards)
            state, metrics = update(state, place_batch(micro))
            values = read_metrics(metrics, state.params, step=int(state.step))
            progress.advance(1, {"loss": values["sft/loss"], "accuracy": values["sft/accuracy"]})
    return state.params, {name: values[name] for name in ("sft/loss", "sft/accuracy")}


def _set_batches(session: Session, rows: int) -> tuple[int, Iterator[PackedBatch]]:
    """Returns the number of updates and their batches from the set on disk, `rows` conversations each."""
    sft, source = session.settings.sft, open_set(session.settings.sft.sft_data)
    # Not the player's, which the first process alone has; each process reads the set itself.
    encode, template = text_encoder(session.tokenizer), ChatTemplate.from_tokenizer(session.tokenizer)

    def to_sequence(messages: list[Message]) -> Sequence:
        return conversation_sequence(messages, encode, template)

    seed = derive_seed(session.settings.seed, "sft_order")
    batches = sft_batches(source, to_sequence, batch=rows, seed=seed % 2**32, epochs=sft.sft_epochs)
    packed = (pack(batch, row_length=session.settings.engine.row_length) for batch in batches)
    return -(-len(source) * sft.sft_epochs // rows), packed


def _expert_batches(session: Session, rows: int) -> tuple[int, Iterator[PackedBatch]]:
    """Returns the number of updates and their batches of `rows` rows, from expert episodes that are played now."""
    settings = session.settings
    batch = once(lambda: session.runner.run(_collect(session)))

    def batches() -> Iterator[PackedBatch]:
        for epoch in range(settings.sft.sft_epochs):
            order = numpy_rng(settings.seed, "sft_order", epoch).permutation(len(batch.ids))
            for start in range(0, len(order), rows):
                yield batch.rows(order[start : start + rows])

    return -(-len(batch.ids) // rows) * settings.sft.sft_epochs, batches()


async def _collect(session: Session) -> PackedBatch:
    """Returns the expert episodes, packed; those longer than a row are left out."""
    settings = session.settings
    benchmark, train, count = session.benchmark, session.tasks["train"], settings.sft.sft_episodes
    if plays_code(benchmark):
        conversations = await code_episodes(
            session.pool, train, count, benchmark.demonstrator, seed=settings.seed, guide=settings.appworld.app_guide
        )
    else:
        conversations = await expert_episodes(
            session.pool,
            train,
            count,
            benchmark.demonstrator,
            seed=settings.seed,
            max_steps=settings.agent.max_steps,
        )
    player, limit = session.player, settings.engine.row_length
    sequences = [
        conversation_sequence(messages, player.encode, player.template, number)
        for number, messages in enumerate(conversations)
    ]
    fitting = [sequence for sequence in sequences if len(sequence.ids) <= limit]
    if not fitting:
        shortest = min(len(sequence.ids) for sequence in sequences)
        raise ConfigError(f"row_length={limit}: the shortest expert episode has {shortest} tokens; raise row_length")
    return pack(fitting, row_length=limit)
