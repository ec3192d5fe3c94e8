"""Stream-wise advantages: references, the DualAdv case by hand, steps against episodes, the joint ablation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import ConfigError, DataError
from sage_jax.losses import group_advantages, stream_advantages
from sage_jax.testing import references


@st.composite
def turns(draw):
    count = draw(st.integers(1, 14))

    def column(values):
        return np.array(draw(st.lists(values, min_size=count, max_size=count)))

    rewards = column(st.integers(-20, 20).map(lambda x: x / 4))
    return (
        rewards,
        column(st.integers(0, 1)),
        column(st.sampled_from(["act", "review"])),
        column(st.integers(0, 3)),
        column(st.booleans()),
    )


@pytest.mark.parametrize("group_stats", ["steps", "episodes"])
@pytest.mark.parametrize("joint", [False, True])
@settings(max_examples=30, deadline=None)
@given(case=turns())
def test_equals_the_reference(group_stats, joint, case):
    rewards, groups, streams, episodes, valid = case
    options = {"scales": {"review": 0.2}, "joint": joint, "group_stats": group_stats}
    got, _ = stream_advantages(rewards, groups, streams, episodes, valid, **options)
    want = references.stream_advantages(rewards, groups, streams, episodes, valid, **options)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


# One task, two rollouts: rollout 0 wins in 3 act turns, rollout 1 fails in 1; each has one review turn.
REWARDS = np.array([10.0, 10.0, 10.0, 0.5, 0.0, -0.1])
GROUPS = np.zeros(6, int)
STREAMS = np.array(["act", "act", "act", "review", "act", "review"])
EPISODES = np.array([0, 0, 0, 0, 1, 1])


def test_hand_worked_steps():
    got, aux = stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES, scales={"review": 0.2}, group_stats="steps")
    # act: 10, 10, 10, 0 -> mean 7.5, squares 3 * 6.25 + 56.25 = 75, / 3 = 25 -> std 5: z = 0.5 and -1.5.
    # review: 0.5, -0.1 -> mean 0.2, squares 2 * 0.09 = 0.18, / 1 -> std 0.424264: z = +-0.707107, times 0.2.
    np.testing.assert_allclose(got, [0.5, 0.5, 0.5, 0.1414211, -1.5, -0.1414211], rtol=3e-6)
    assert aux["groups"] == 2


def test_hand_worked_episodes():
    got, _ = stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES, group_stats="episodes")
    # act: one sample an episode, 10 and 0 -> mean 5, squares 25 + 25 = 50, / 1 -> std 7.071068: z = +-0.707107.
    np.testing.assert_allclose(got, [0.707107, 0.707107, 0.707107, 0.707107, -0.707107, -0.707107], rtol=4e-6)


def test_joint_mixes_the_streams():
    got, aux = stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES, joint=True)
    want, _ = group_advantages(REWARDS, GROUPS, kind="zscore")
    np.testing.assert_allclose(got, want)
    assert aux["groups"] == 1
    # In the joint ablation the review of the losing rollout is hidden by the scale of the environment reward.
    assert abs(got[3] - got[5]) < 0.2


def test_one_stream_of_steps_is_group_advantages():
    rng = np.random.default_rng(0)
    rewards, groups = rng.normal(size=20), rng.integers(0, 3, 20)
    for kind in ("mean", "zscore", "leave_one_out"):
        got, _ = stream_advantages(rewards, groups, np.zeros(20, int), np.arange(20), kind=kind)
        np.testing.assert_array_equal(got, group_advantages(rewards, groups, kind=kind)[0])


def test_episodes_with_equal_means_stay_bounded():
    # Both episodes average 0, their turns do not: a deviation of episode means alone would be 0 and blow up the rest.
    got, _ = stream_advantages(
        np.array([1.0, -1.0, 2.0, -2.0]), np.zeros(4), np.zeros(4), np.array([0, 0, 1, 1]), group_stats="episodes"
    )
    # squares: (1 + 1) / 2 + (4 + 4) / 2 = 5, / (2 - 1) -> std 2.236068
    np.testing.assert_allclose(got, np.array([1, -1, 2, -2]) / 2.236069, rtol=1e-6)


def test_leave_one_out_over_episodes_leaves_the_whole_episode_out():
    got, _ = stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES, kind="leave_one_out", group_stats="episodes")
    np.testing.assert_allclose(got[[0, 4]], [10.0, -10.0])


def test_streams_do_not_touch_each_other():
    changed = REWARDS.copy()
    changed[STREAMS == "review"] *= -7
    first, _ = stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES)
    second, _ = stream_advantages(changed, GROUPS, STREAMS, EPISODES)
    np.testing.assert_array_equal(first[STREAMS == "act"], second[STREAMS == "act"])
    np.testing.assert_allclose(first[STREAMS == "review"], -second[STREAMS == "review"], rtol=1e-5)


def test_invalid_turns_leave_the_statistics():
    valid = np.array([True, True, True, True, True, False])
    got, aux = stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES, valid)
    assert np.isnan(got[5])
    assert got[3] == pytest.approx(0.5, rel=1e-5)  # A lone review turn: mean 0, std 1.
    assert aux["samples_invalid"] == 1
    assert aux["groups_of_one"] == 1


def test_no_turns():
    got, aux = stream_advantages(np.zeros(0), np.zeros(0, int), np.zeros(0, int), np.zeros(0, int))
    assert got.shape == (0,)
    assert aux["groups"] == 0


def test_refusals():
    with pytest.raises(ConfigError, match="'turns'.*'steps' or 'episodes'"):
        stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES, group_stats="turns")
    with pytest.raises(DataError, match="episodes"):
        stream_advantages(REWARDS, GROUPS, STREAMS, EPISODES[:3])
