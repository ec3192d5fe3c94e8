"""The SFT cold start: expert episodes on the real engine, a few passes, before the first rollout."""

from __future__ import annotations

from typing import Any

from sage_jax.data.expert_episodes import expert_episodes
from sage_jax.data.packing import PackedBatch, micro_batches, pack
from sage_jax.data.sft import conversation_sequence
from sage_jax.errors import ConfigError
from sage_jax.metrics.progress import show_progress
from sage_jax.models.transformer import head_weights
from sage_jax.seeding import numpy_rng
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.session import Session
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, make_update_step, read_metrics


def cold_start(session: Session) -> tuple[Any, dict[str, float]]:
    """Returns the parameters after SFT on fresh expert episodes, and the last update's metrics."""
    settings = session.settings
    if not settings.sft.sft_episodes:
        return session.params, {}
    batch = session.runner.run(_collect(session))
    rows = max(1, settings.sft.sft_tokens // settings.engine.row_length)
    updates = -(-len(batch.ids) // rows) * settings.sft.sft_epochs
    optimizer = make_optimizer(
        OptimizerOptions(
            name=settings.rl.optimizer,
            learning_rate=settings.sft.sft_lr,
            schedule="cosine",
            warmup_steps=max(1, updates // 10),
            total_steps=updates + 1,
        )
    )
    update = make_update_step(session.forward, head_weights, optimizer, LossOptions(kind="sft"))
    state, values = TrainState.create(session.params, optimizer), {}
    with show_progress("cold start", updates) as progress:
        for epoch in range(settings.sft.sft_epochs):
            order = numpy_rng(settings.seed, "sft_order", epoch).permutation(len(batch.ids))
            for start in range(0, len(order), rows):
                part = batch.rows(order[start : start + rows])
                micro = micro_batches(part, rows, capacity_multiple=rows * settings.engine.row_length)
                state, metrics = update(state, micro)
                values = read_metrics(metrics, state.params, step=int(state.step))
                progress.advance(1, {"loss": values["sft/loss"], "accuracy": values["sft/accuracy"]})
    return state.params, {name: values[name] for name in ("sft/loss", "sft/accuracy")}


async def _collect(session: Session) -> PackedBatch:
    """Returns the expert episodes, packed; those longer than a row are left out."""
    settings = session.settings
    conversations = await expert_episodes(
        session.pool,
        session.tasks["train"],
        settings.sft.sft_episodes,
        session.benchmark.demonstrator,
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
