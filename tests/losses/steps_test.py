"""Step-level groups: the reference, GiGPO's case by hand, invariances, turns without a reward."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import ConfigError, DataError
from sage_jax.losses import discounted_returns, group_advantages, step_advantages
from sage_jax.testing import references


@st.composite
def turns(draw):
    count = draw(st.integers(0, 14))

    def column(values):
        return np.array(draw(st.lists(values, min_size=count, max_size=count)))

    episodes = column(st.integers(0, 4)).astype(int)
    return (
        column(st.integers(-20, 20).map(lambda x: x / 4)).astype(float),
        episodes // 3,  # two groups; an episode belongs to one
        episodes,
        column(st.sampled_from(["hall", "shop", "till"])).astype("U4"),
        column(st.booleans() | st.just(True)).astype(bool),
    )


@pytest.mark.parametrize("kind", ["mean", "zscore", "leave_one_out"])
@settings(max_examples=25, deadline=None)
@given(case=turns(), discount=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_equals_the_reference(kind, case, discount):
    got, _ = step_advantages(*case, discount=discount, kind=kind)
    want = references.step_advantages(*case, discount=discount, kind=kind)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# One task, two rollouts. Both start in the hall; the first goes to the shop and wins, the second comes back to the
# hall once, then loses in the till.
REWARDS = np.array([0.0, 10.0, 0.0, -1.0, 0.0])
EPISODES = np.array([0, 0, 1, 1, 1])
ANCHORS = np.array(["hall", "shop", "hall", "hall", "till"])
GROUPS = np.zeros(5, int)


def test_returns_by_hand():
    # Episode 0: 10, and 0 + 10/2. Episode 1: 0, -1 + 0/2, and 0 + -1/2.
    got = discounted_returns(REWARDS, EPISODES, discount=0.5)
    np.testing.assert_array_equal(got, [5.0, 10.0, -0.5, -1.0, 0.0])
    np.testing.assert_array_equal(discounted_returns(REWARDS, EPISODES, discount=0.0), REWARDS)


def test_advantages_by_hand():
    # The hall was met three times, with returns 5, -1/2, -1: mean 7/6. Shop and till were met once: nothing to compare.
    got, aux = step_advantages(REWARDS, GROUPS, EPISODES, ANCHORS, discount=0.5, kind="mean")
    np.testing.assert_allclose(got, [23 / 6, 0, -10 / 6, -13 / 6, 0], rtol=1e-6)
    assert aux["has_signal"].tolist() == [True, False, True, True, False]
    # Squares 14.6944 + 2.7778 + 4.6944 = 22.1667, / 2 = 11.0833 -> deviation 3.329164.
    scored, _ = step_advantages(REWARDS, GROUPS, EPISODES, ANCHORS, discount=0.5)
    np.testing.assert_allclose(scored, np.array([23 / 6, 0, -10 / 6, -13 / 6, 0]) / 3.329165, rtol=1e-6)


def test_a_state_of_another_task_is_another_state():
    got, aux = step_advantages(np.array([1.0, 0.0]), np.array([0, 1]), np.arange(2), np.array(["hall", "hall"]))
    assert got.tolist() == [0.0, 0.0]
    assert aux["groups_of_one"] == 2


def test_episodes_of_one_step_from_one_state_are_plain_groups():
    rewards, groups = np.random.default_rng(0).normal(size=12), np.arange(12) % 3
    got, _ = step_advantages(rewards, groups, np.arange(12), np.full(12, "start"), discount=0.9)
    np.testing.assert_array_equal(got, group_advantages(rewards, groups)[0])


@settings(max_examples=15, deadline=None)
@given(case=turns(), seed=st.integers(0, 9))
def test_order_of_episodes_and_names_of_states_do_not_matter(case, seed):
    rewards, groups, episodes, anchors, valid = case
    got, _ = step_advantages(*case)
    order = np.argsort(np.random.default_rng(seed).permutation(5)[episodes], kind="stable")  # episodes stay in order
    renamed = np.char.add("the ", anchors[order])
    moved, _ = step_advantages(rewards[order], groups[order], episodes[order], renamed, valid[order])
    np.testing.assert_allclose(moved, got[order], rtol=1e-5, atol=1e-5)


def test_with_a_full_discount_a_shifted_outcome_changes_nothing():
    shifted = REWARDS.copy()
    shifted[[1, 4]] += 7.0  # the last turn of each episode
    first, _ = step_advantages(REWARDS, GROUPS, EPISODES, ANCHORS, discount=1.0, kind="mean")
    second, _ = step_advantages(shifted, GROUPS, EPISODES, ANCHORS, discount=1.0, kind="mean")
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_turns_before_a_lost_reward_have_no_return():
    valid = np.array([True, True, True, False, True])
    got, aux = step_advantages(REWARDS, GROUPS, EPISODES, ANCHORS, valid, discount=0.5, kind="mean")
    # Only the last turn of episode 1 is known; the hall of episode 0 is then met once.
    np.testing.assert_array_equal(got, np.array([0, 0, np.nan, np.nan, 0], np.float32))
    assert aux["samples_invalid"] == 2
    assert not aux["has_signal"].any()


def test_refusals():
    with pytest.raises(ConfigError, match="step_discount=1.5"):
        discounted_returns(REWARDS, EPISODES, discount=1.5)
    with pytest.raises(DataError, match="anchors"):
        step_advantages(REWARDS, GROUPS, EPISODES, ANCHORS[:3])
