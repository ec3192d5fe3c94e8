"""Paired credit: the reference, a case by hand, what a z-score leaves of it, groups without a pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import ConfigError, DataError
from sage_jax.losses import group_advantages, paired_credit
from sage_jax.losses.paired import RECEIVERS
from sage_jax.testing import references


@st.composite
def rollouts(draw):
    count = draw(st.integers(0, 12))

    def column(values, dtype):
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype)

    flags = st.booleans()
    numbers = st.integers(-8, 8).map(lambda x: x / 4)
    return column(numbers, float), column(st.integers(0, 2), int), column(flags, bool), column(flags, bool)


@pytest.mark.parametrize("to", RECEIVERS)
@settings(max_examples=25, deadline=None)
@given(case=rollouts(), coef=st.sampled_from([0.0, 0.5, 2.0]))
def test_equals_the_reference(to, case, coef):
    got, _ = paired_credit(*case, coef=coef, to=to)
    np.testing.assert_allclose(got, references.paired_credit(*case, coef=coef, to=to), rtol=1e-12, atol=1e-12)


# Group 0: with skills 1, 1, 0; without 1, 0, 0, 0 -> a quarter. Group 1: without skills nobody lost.
OUTCOMES = np.array([1, 1, 0, 1, 0, 0, 0, 0, 1], float)
GROUPS = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1])
SKILLED = np.array([1, 1, 1, 0, 0, 0, 0, 1, 0], bool)


def test_by_hand():
    credit, aux = paired_credit(OUTCOMES, GROUPS, SKILLED, coef=2.0)
    # 2 * (1 - 1/4), 2 * (0 - 1/4), nothing for those without; group 1: 2 * (0 - 1).
    np.testing.assert_array_equal(credit, [1.5, 1.5, -0.5, 0, 0, 0, 0, -2.0, 0])
    # Gaps 2/3 - 1/4 = 5/12 and 0 - 1 = -1: their mean is -7/24.
    assert aux["gap"] == pytest.approx(-7 / 24)
    assert aux["groups_paired"] == 2
    everyone, _ = paired_credit(OUTCOMES, GROUPS, SKILLED, coef=2.0, to="all")
    np.testing.assert_array_equal(everyone, [1.5, 1.5, -0.5, 1.5, -0.5, -0.5, -0.5, -2.0, 0])


def test_given_to_all_a_z_score_takes_it_out_again():
    rewards = 10.0 * OUTCOMES
    plain, _ = group_advantages(rewards, GROUPS, eps=1e-12)
    everyone, _ = paired_credit(OUTCOMES, GROUPS, SKILLED, to="all")
    np.testing.assert_allclose(group_advantages(rewards + everyone, GROUPS, eps=1e-12)[0], plain, rtol=1e-6)
    skilled, _ = paired_credit(OUTCOMES, GROUPS, SKILLED)
    changed, _ = group_advantages(rewards + skilled, GROUPS, eps=1e-12)
    assert changed[0] > plain[0]  # won with skills: more than a win without
    assert changed[3] < changed[0]


@settings(max_examples=15, deadline=None)
@given(case=rollouts(), seed=st.integers(0, 9), shift=st.integers(-3, 3))
def test_order_and_shifted_outcomes_do_not_matter(case, seed, shift):
    outcomes, groups, skilled, valid = case
    got, _ = paired_credit(*case)
    order = np.random.default_rng(seed).permutation(len(outcomes))
    moved, _ = paired_credit(outcomes[order] + shift, groups[order], skilled[order], valid[order])
    np.testing.assert_allclose(moved, got[order], atol=1e-12)


def test_a_group_without_a_pair_gets_nothing():
    credit, aux = paired_credit(np.array([1.0, 0.0, 1.0]), np.array([0, 0, 1]), np.array([True, True, False]))
    assert credit.tolist() == [0.0, 0.0, 0.0]
    assert aux == {"gap": 0.0, "groups_paired": 0.0}


def test_a_lost_rollout_leaves_the_baseline():
    valid = np.array([True, True, True, False, True, True, True, True, True])
    credit, _ = paired_credit(OUTCOMES, GROUPS, SKILLED, valid)
    np.testing.assert_array_equal(credit[:4], [1.0, 1.0, 0.0, 0.0])  # without skills nobody else won


def test_refusals():
    with pytest.raises(ConfigError, match="paired_to='some'.*skilled, all"):
        paired_credit(OUTCOMES, GROUPS, SKILLED, to="some")
    with pytest.raises(DataError, match="skilled"):
        paired_credit(OUTCOMES, GROUPS, SKILLED[:2])
