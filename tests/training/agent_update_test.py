"""The update on agent trajectories in float64: packed, in tiles and with shared prefixes it is that of one row each."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from sage_jax.data.packing import PackedBatch, micro_batches, pack, trajectories_to_sequences
from sage_jax.data.prefixes import pack_shared
from sage_jax.models import ModelConfig, forward, head_weights, init_params
from sage_jax.training.optimizer import decay_mask
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, make_update_step, read_metrics
from sage_jax.types import RewardResult, Task, Trajectory, Turn

MODEL = ModelConfig(
    vocab_size=17, hidden_size=8, intermediate_size=12, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4
)
LOSS = LossOptions(aggregation="sequence_mean", dual_clip=3.0, kl_coef=0.1, entropy_coef=0.02, temperature=0.7)
DESCENT = optax.sgd(1.0)  # one update subtracts the gradient


def episodes(context: str) -> list[Trajectory]:
    """Two groups of two episodes of up to 8 turns, four fifths of them observations.

    With context "steps" every turn is a sample of its own: the task, then the last four steps, then the observation.
    """
    rng = np.random.default_rng(0)
    made = []
    for number in range(4):
        task = tuple(np.random.default_rng(number // 2).integers(0, 17, 12).tolist())
        history, turns = [], []
        for step in range(int(rng.integers(3, 9))):
            observation, answer = (tuple(rng.integers(0, 17, size).tolist()) for size in (8, 2))
            if context == "steps":
                prompt = task + sum(history[-4:], ()) + observation
            else:
                prompt = (task if not step else ()) + observation
            history.append(observation + answer)
            logprobs = tuple(-rng.uniform(1, 3, 2))
            first = context == "steps" or not step
            turns.append(Turn("act", prompt, answer, logprobs, starts_context=first, advantage=float(rng.normal())))
        made.append(Trajectory(Task("t", "alfworld", "train", "f"), "g", number, tuple(turns), RewardResult(0.0)))
    return made


def one_per_row(sequences, row_length: int) -> PackedBatch:
    """Returns the sequences as the rivals have them: a row each, padded to the longest."""
    rows = [pack([sequence], row_length=row_length) for sequence in sequences]
    names = [field.name for field in dataclasses.fields(PackedBatch) if field.name != "ends"]
    return PackedBatch(**{name: np.concatenate([getattr(row, name) for row in rows]) for name in names})


def outcome(batch, rows, implementation):
    """Returns loss and gradients."""
    run = functools.partial(forward, MODEL, compute_dtype="float64", attention_implementation=implementation)
    params, reference = (
        jax.tree.map(lambda leaf, matrix: np.float64(20 * leaf if matrix else leaf), drawn, decay_mask(drawn))
        for drawn in (init_params(MODEL, jax.random.key(seed)) for seed in (0, 1))
    )
    update = make_update_step(run, head_weights, DESCENT, LOSS)
    state, metrics = update(TrainState.create(params, DESCENT), micro_batches(batch, rows), reference)
    grads = jax.tree.map(lambda before, after: before - np.asarray(after), params, state.params)
    return read_metrics(metrics, params, step=0), grads


@pytest.mark.parametrize(
    ("context", "pack_rows", "row_length"),
    [("chat", pack, 160), ("chat", pack_shared, 160), ("steps", pack_shared, 160)],
)
def test_packed_equals_unpacked(context, pack_rows, row_length, monkeypatch):
    monkeypatch.setattr("sage_jax.models.tiled_attention._TILE", 32)
    sequences = trajectories_to_sequences(episodes(context))
    longest = max(len(sequence.ids) for sequence in sequences)
    apart = one_per_row(sequences, longest)
    packed = pack_rows(sequences, row_length=row_length)
    tokens = int((packed.segment_ids > 0).sum())
    assert (tokens < sum(len(one.ids) for one in sequences)) == (pack_rows is pack_shared)
    with jax.enable_x64(True):
        (plain, wanted), (metrics, grads) = (
            outcome(apart, 4, "xla"),
            outcome(packed, len(packed.ids), "tiled"),
        )
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(grads))
    for name in ("loss/total", "loss/kl", "loss/entropy", "update/grad_norm", "tokens/trained"):
        np.testing.assert_allclose(metrics[name], plain[name], rtol=1e-6, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), grads, wanted)
    assert plain["update/grad_norm"] > 0.01
