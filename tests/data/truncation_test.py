"""What truncation leaves out: by hand, exactly in expectation, and in the sequences of an update."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.data.packing import trajectories_to_sequences
from sage_jax.data.truncation import kept_mass, left_out
from sage_jax.errors import DataError
from sage_jax.rollout.sampling import SamplingRows, sample
from sage_jax.testing import references
from sage_jax.types import RewardResult, Task, Trajectory, Turn

COUNT = 512
jit_sample = jax.jit(sample)


def turn(masses, *, prompt=1, advantage=1.0, starts=False):
    """A turn whose tokens were drawn from these masses of the distribution."""
    logprobs = [-1.0 - number for number in range(len(masses))]
    drawn = tuple(logprob - math.log(mass) for logprob, mass in zip(logprobs, masses, strict=True))
    ids = tuple(range(5, 5 + len(masses)))
    return Turn("act", (1,) * prompt, ids, tuple(logprobs), starts, advantage=advantage, sampled_logprobs=drawn)


def trajectory(*turns):
    return Trajectory(Task("t", "toy", "train", "f"), "g", 0, turns, RewardResult(1.0))


# 0.8 and 0.5 of the first turn, 0.9 of the last are trained on: together 0.36. The second turn has no advantage.
TURNS = (turn([0.8, 0.5], prompt=2, starts=True), turn([0.1], advantage=None), turn([0.9], advantage=-2.0))


def test_kept_mass_by_hand():
    np.testing.assert_allclose(kept_mass(TURNS, "token"), [1, 1, 0.8, 0.5, 1, 1, 1, 0.9], rtol=1e-6)
    np.testing.assert_allclose(kept_mass(TURNS, "sequence"), [1, 1, 0.36, 0.36, 1, 1, 1, 0.36], rtol=1e-6)


def test_advantages_are_multiplied_by_it_and_nothing_else_changes():
    plain, token, sequence = (
        trajectories_to_sequences([trajectory(*TURNS)], kept=kept)[0] for kept in (None, "token", "sequence")
    )
    np.testing.assert_array_equal(plain.advantages, [0, 0, 1, 1, 0, 0, 0, -2])
    np.testing.assert_allclose(token.advantages, [0, 0, 0.8, 0.5, 0, 0, 0, -1.8], rtol=1e-6)
    np.testing.assert_allclose(sequence.advantages, [0, 0, 0.36, 0.36, 0, 0, 0, -0.72], rtol=1e-6)
    for one in (token, sequence):
        assert one.advantages.dtype == plain.advantages.dtype
        for name in ("ids", "mask", "engine_logprobs", "stream_ids"):
            np.testing.assert_array_equal(getattr(one, name), getattr(plain, name))


def test_draws_from_the_whole_distribution_are_left_as_they_are():
    whole = trajectory(turn([1.0, 1.0], starts=True), turn([1.0]))
    for level in ("token", "sequence"):
        np.testing.assert_array_equal(kept_mass(whole.turns, level), 1)
    assert left_out([whole]) == {"rollout/left_out": 0.0}
    # Above 1 by rounding is 1.
    above = dataclasses.replace(whole.turns[0], sampled_logprobs=tuple(x - 1e-7 for x in whole.turns[0].logprobs))
    np.testing.assert_array_equal(kept_mass([above], "token"), 1)


def test_left_out_by_hand_and_in_any_order():
    # 0.2, 0.5, 0.9, 0.1 of the four tokens, with or without an advantage: mean 0.425.
    other = trajectory(turn([0.575], starts=True))
    assert left_out([trajectory(*TURNS)]) == pytest.approx({"rollout/left_out": 0.425})
    assert left_out([trajectory(*TURNS), other]) == left_out([other, trajectory(*TURNS)])
    silent = trajectory(dataclasses.replace(TURNS[0], sampled_logprobs=None))
    assert left_out([silent]) == {}
    assert left_out([silent, trajectory(*TURNS)]) == left_out([trajectory(*TURNS)])


def test_an_engine_that_does_not_tell_is_refused():
    silent = dataclasses.replace(TURNS[2], sampled_logprobs=None)
    with pytest.raises(DataError, match="turn 1: no sampled_logprobs.*importance_kept=False"):
        trajectories_to_sequences([trajectory(TURNS[0], silent)], kept="token")
    untrained = dataclasses.replace(silent, advantage=None)
    assert len(trajectories_to_sequences([trajectory(TURNS[0], untrained)], kept="token")) == 1


@settings(max_examples=15, deadline=None)
@given(
    tenths=st.lists(st.integers(-30, 30), min_size=6, max_size=6, unique=True),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    top_k=st.integers(0, 4),
)
def test_weighted_draws_of_the_sampler_expect_what_the_trainer_expects_of_the_kept_tokens(tenths, top_p, top_k):
    """E over draws of Z pi / p f = sum over kept tokens of pi f, for any f: one f a token shows it."""
    logits = np.array(tenths) / 10
    engine = np.exp(logits) / np.exp(logits).sum()
    ordered = np.sort(engine)[::-1]
    if np.abs(np.cumsum(ordered) - top_p).min() < 1e-4:
        return  # a mass that equals top_p to rounding may fall on either side
    rng = np.random.default_rng(0)
    trainer = engine * rng.uniform(0.5, 2.0, len(engine))
    tokens, mass = references.kept_mass(logits, top_p=top_p, top_k=top_k)
    rows = SamplingRows(
        np.stack([np.zeros(COUNT), np.arange(COUNT)], axis=-1).astype(np.uint32),
        *(np.full(COUNT, value, np.float32) for value in (1.0, top_p)),
        np.full(COUNT, top_k, np.int32),
    )
    tiled = np.tile(np.asarray(logits, np.float32), (COUNT, 1))
    ids, logprobs, drawn = map(np.asarray, jit_sample(tiled, np.zeros(COUNT, np.int32), rows))
    assert set(ids.tolist()) <= tokens
    one = Turn("act", (), tuple(ids), tuple(logprobs), True, advantage=1.0, sampled_logprobs=tuple(drawn))
    kept = kept_mass([one], "token")
    np.testing.assert_allclose(kept, mass, rtol=1e-4)
    for token in set(ids.tolist()):
        place = int(np.argmax(ids == token))
        weight = kept[place] * trainer[token] / np.exp(logprobs[place])
        probability = engine[token] / mass  # of the draw
        np.testing.assert_allclose(probability * weight, trainer[token], rtol=1e-4)
