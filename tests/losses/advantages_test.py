"""Group advantages: references, arithmetic by hand, invariances, invalid samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import ConfigError, DataError, NumericsError
from sage_jax.losses import group_advantages
from sage_jax.losses.advantages import KINDS
from sage_jax.testing import references


@st.composite
def samples(draw):
    count = draw(st.integers(1, 12))
    rewards = draw(st.lists(st.integers(-40, 40).map(lambda x: x / 4), min_size=count, max_size=count))
    groups = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    valid = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return np.array(rewards), np.array(groups), np.array(valid)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(case=samples())
def test_equals_the_reference(kind, case):
    rewards, groups, valid = case
    got, _ = group_advantages(rewards, groups, valid, kind=kind)
    np.testing.assert_allclose(
        got, references.group_advantages(rewards, groups, valid, kind=kind), rtol=2e-6, atol=1e-6
    )


def test_hand_worked():
    # Group 7: rewards 1, 0, 0, 1 -> mean 1/2; squares 4 * 1/4 = 1, ddof 1 -> std sqrt(1/3) = 0.577350.
    # Group 9: one reward 3.
    rewards, groups = np.array([1.0, 3.0, 0.0, 0.0, 1.0]), np.array([7, 9, 7, 7, 7])
    mean, _ = group_advantages(rewards, groups, kind="mean")
    np.testing.assert_allclose(mean, [0.5, 0, -0.5, -0.5, 0.5])
    # 0.5 / (0.577350 + 0.000001) = 0.866024; the lone 3 keeps its value, but for the 1 + 1e-6.
    zscore, _ = group_advantages(rewards, groups, kind="zscore")
    np.testing.assert_allclose(zscore, [0.866024, 3 / 1.000001, -0.866024, -0.866024, 0.866024], rtol=1e-6)
    # A winner against the other three: 1 - 1/3; a loser: 0 - 2/3; the lone sample has none to compare with.
    left_out, _ = group_advantages(rewards, groups, kind="leave_one_out")
    np.testing.assert_allclose(left_out, [2 / 3, 0, -2 / 3, -2 / 3, 2 / 3], rtol=1e-6)


def test_counts_and_signal():
    rewards = np.array([1.0, 1.0, 0.0, 2.0, 5.0, np.nan, np.nan])
    groups = np.array(["flat", "flat", "mixed", "mixed", "lone", "lone", "lost"])
    valid = np.array([True, True, True, True, True, False, False])
    got, aux = group_advantages(rewards, groups, valid, kind="mean")
    assert {name: aux[name] for name in aux if name != "has_signal"} == {
        "groups": 4,
        "groups_without_spread": 1,
        "groups_of_one": 1,
        "groups_empty": 1,
        "samples_invalid": 2,
    }
    assert aux["has_signal"].tolist() == [False, False, True, True, False, False, False]
    np.testing.assert_array_equal(got, np.array([0, 0, -1, 1, 0, np.nan, np.nan], np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_samples_do_not_shift_the_baseline(kind):
    rewards, groups = np.array([0.0, 1.0, 2.0]), np.zeros(3, int)
    alone, _ = group_advantages(rewards, groups, kind=kind)
    padded = np.insert(rewards, 1, [0.0, 99.0])
    got, _ = group_advantages(padded, np.zeros(5, int), np.array([True, False, False, True, True]), kind=kind)
    np.testing.assert_array_equal(got[[0, 3, 4]], alone)
    assert np.isnan(got[1:3]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_not_spread(kind):
    got, aux = group_advantages(np.array([0.1 + 0.2, 0.3]), np.zeros(2, int), kind=kind)
    assert got.tolist() == [0.0, 0.0]
    assert aux["groups_without_spread"] == 1


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(case=samples(), seed=st.integers(0, 99), shift=st.integers(-8, 8))
def test_permuting_and_shifting(kind, case, seed, shift):
    rewards, groups, valid = case
    got, _ = group_advantages(rewards, groups, valid, kind=kind)
    order = np.random.default_rng(seed).permutation(len(rewards))
    permuted, _ = group_advantages(rewards[order], groups[order], valid[order], kind=kind)
    np.testing.assert_allclose(permuted, got[order], rtol=1e-6, atol=1e-7)
    lone = np.array([valid[i] and (valid & (groups == groups[i])).sum() == 1 for i in range(len(groups))])
    shifted, _ = group_advantages(rewards + shift, groups, valid, kind=kind)
    kept = ~lone if kind == "zscore" else np.ones_like(lone)  # A lone z-score is its raw reward.
    np.testing.assert_allclose(shifted[kept], got[kept], rtol=1e-6, atol=1e-6)


def test_no_samples():
    got, aux = group_advantages(np.zeros(0), np.zeros(0, int))
    assert got.shape == (0,)
    assert aux["groups"] == 0


def test_refusals():
    with pytest.raises(ConfigError, match="'median'.*leave_one_out"):
        group_advantages(np.ones(2), np.zeros(2, int), kind="median")
    with pytest.raises(DataError, match=r"\(2,\), groups \(3,\)"):
        group_advantages(np.ones(2), np.zeros(3, int))
    with pytest.raises(NumericsError, match="sample 1.*invalid instead"):
        group_advantages(np.array([0.0, np.nan]), np.zeros(2, int))
