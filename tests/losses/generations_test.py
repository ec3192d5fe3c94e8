"""Bi-level advantages: arithmetic by hand, references, invariances, and what the paper's formula can teach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import ConfigError, DataError, NumericsError
from sage_jax.losses import generation_advantages, policy_loss, token_weights
from sage_jax.testing import references


@st.composite
def cases(draw, mode):
    siblings = 1 if mode == "literal" else draw(st.integers(1, 3))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), siblings, draw(st.integers(1, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    rewards = rng.integers(0, 2, shape).astype(float)
    kept = rng.integers(0, shape[2], shape[:2])
    return rewards, rng.random(shape) < draw(st.sampled_from([0.5, 0.9, 1.0])), kept


@pytest.mark.parametrize("mode", ["literal", "sibling"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), inter_coef=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_equals_the_reference(mode, data, inter_coef):
    rewards, valid, kept = data.draw(cases(mode))
    got = generation_advantages(rewards, valid, kept, mode=mode, inter_coef=inter_coef)
    total, positive = references.generation_advantages(rewards, valid, kept, mode=mode, inter_coef=inter_coef)
    np.testing.assert_allclose(got.total, total, atol=1e-12)
    np.testing.assert_allclose(got.positive, positive, atol=1e-12)


def test_three_generations_by_hand():
    # One instance, K = 4 rollouts; rbar = 1/4, 1/2, 1/4. lambda = 2.
    #   g=1: intra 3/4, -1/4, -1/4, -1/4; inter 0 by definition              -> A = the same
    #   g=2: intra 1/2, 1/2, -1/2, -1/2; inter 1/2 - 1/4 = 1/4, times 2 = 1/2 -> A = 1, 1, 0, 0
    #   g=3: intra 3/4, -1/4, -1/4, -1/4; inter -1/4, times 2 = -1/2          -> A = 1/4, -3/4, -3/4, -3/4
    rewards = np.array([[[[1, 0, 0, 0]], [[1, 1, 0, 0]], [[1, 0, 0, 0]]]], float)
    got = generation_advantages(rewards, mode="literal", inter_coef=2.0)
    np.testing.assert_array_equal(got.intra[0, 1, 0], [0.5, 0.5, -0.5, -0.5])
    assert got.means[0, :, 0].tolist() == [0.25, 0.5, 0.25]
    assert got.inter[0, :, 0].tolist() == [0.0, 0.25, -0.25]
    assert got.total[0, :, 0].tolist() == [0.0, 2.0, -2.0]  # K lambda A_inter = 4 * 2 * 1/4
    assert got.positive[0, :, 0].tolist() == [0.75, 2.0, 0.25]


def test_siblings_by_hand():
    # K = 2, M = 2. g=1: rbar 1/2, 0 -> centred 1/4, -1/4, no inter. Sibling 1 (rbar 0) is kept.
    # g=2: rbar 1, 1/2 -> centred 1/4, -1/4; against the parent's 0: 1, 1/2, times 1/2 -> 3/4, 0.
    rewards = np.array([[[[1, 0], [0, 0]], [[1, 1], [0, 1]]]], float)
    got = generation_advantages(rewards, kept=np.array([[1, 0]]), mode="sibling", inter_coef=0.5)
    assert got.total[0].tolist() == [[0.25, -0.25], [0.75, 0.0]]
    assert got.positive[0].tolist() == [[0.25, 0.0], [0.75, 0.0]]


@pytest.mark.parametrize("mode", ["literal", "sibling"])
@settings(max_examples=30, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_the_order_of_rollouts_changes_no_digit(mode, data, seed):
    rewards, valid, kept = data.draw(cases(mode))
    rewards = rewards + np.random.default_rng(seed).normal(size=rewards.shape)
    order = np.random.default_rng(seed).permutation(rewards.shape[-1])
    got = generation_advantages(rewards, valid, kept, mode=mode)
    moved = generation_advantages(rewards[..., order], valid[..., order], kept, mode=mode)
    for name in ("inter", "total", "positive", "means"):
        np.testing.assert_array_equal(getattr(moved, name), getattr(got, name))
    np.testing.assert_array_equal(moved.intra, got.intra[..., order])


@pytest.mark.parametrize("mode", ["literal", "sibling"])
def test_a_failed_rollout_leaves_both_means(mode):
    rewards = np.array([[[[1, 0, 0]], [[1, 1, 0]]]], float)
    alone = generation_advantages(rewards, mode=mode)
    padded = np.concatenate([rewards, np.full((1, 2, 1, 1), 77.0)], axis=-1)
    valid = np.ones(padded.shape, bool)
    valid[..., -1] = False
    got = generation_advantages(padded, valid, mode=mode)
    for name in ("inter", "total", "positive", "means"):
        np.testing.assert_array_equal(getattr(got, name), getattr(alone, name))
    assert np.isnan(got.intra[..., -1]).all()


def test_generations_without_a_rollout_are_no_comparison():
    rewards = np.array([[[[1.0, 0]], [[0, 0]], [[1, 1]]]])
    valid = np.ones(rewards.shape, bool)
    valid[0, 1] = False
    got = generation_advantages(rewards, valid, mode="literal")
    assert np.isnan(got.total[0, 1, 0])
    assert got.inter[0, 2, 0] == 0.0
    assert got.total[0, 2, 0] == 0.0


def literal_gradient(inter_coef, offset):
    """Returns d loss / d logprobs of three generations of one instance, ratios exp(offset) off the sampling policy.

    Each skill is two sequences of two tokens: one with the sum of its rollouts' positive advantages, one with the
    negative ones. Rewards are thirds, whose sums of deviations do not vanish in floating point.
    """
    rewards = np.array([[[[1, 0, 0]], [[1, 1, 0]], [[0, 1, 1]]]], float)
    got = generation_advantages(rewards, mode="literal", inter_coef=inter_coef)
    parts = np.stack([got.positive, got.total - got.positive], axis=-1).reshape(-1)
    advantages, ids = jnp.repeat(jnp.float32(parts), 2), jnp.repeat(jnp.arange(6), 2)
    mask = jnp.ones(12)
    weights = token_weights(mask, aggregation="sequence_mean", sequence_ids=ids)

    def loss(skill_logprobs):  # [3, 2]: both sequences of a skill hold the same tokens
        logprobs = jnp.repeat(skill_logprobs, 2, axis=0).reshape(-1)
        old = jnp.full(12, -1.0)
        return policy_loss(
            logprobs, advantages, mask, old_logprobs=old, weights=weights, ratio_level="sequence", sequence_ids=ids
        )[0]

    return np.asarray(jax.grad(loss)(jnp.full((3, 2), -1.0 + offset / 2)))


def test_literal_at_lambda_zero_has_no_gradient_inside_the_clip_window():
    for offset in (0.0, 0.1, -0.1):
        assert not literal_gradient(0.0, offset).any()
    # Outside, e^0.5 > 1.2: only the negative parts move, towards the window, whatever the skill was worth.
    outside = literal_gradient(0.0, 0.5)
    assert (outside > 0).all()


def test_literal_teaches_by_the_step_between_generations_alone():
    # A_inter = 0, 1/3, 0; K lambda A_inter = 3 * 1 * 1/3 = 1 for g=2; six sequences: -1/6 for each of its two tokens.
    np.testing.assert_allclose(literal_gradient(1.0, 0.0), [[0, 0], [-1 / 6, -1 / 6], [0, 0]], atol=1e-7)


def test_a_parent_chosen_for_its_reward_makes_every_step_negative():
    """Skills of one distribution in both generations: against any sibling of the first the step is zero on average,
    against the best of four it is 1/3 - (1 - (2/3)^4) = -0.469: a push away from whatever is written next."""
    rewards = (np.random.default_rng(0).random((4000, 2, 4, 1)) < 1 / 3).astype(float)
    best = rewards.mean(axis=-1).argmax(axis=-1)
    steps = {
        name: generation_advantages(rewards, kept=kept, mode="sibling").inter[:, 1].mean()
        for name, kept in {"first": np.zeros_like(best), "best": best}.items()
    }
    assert abs(steps["first"]) < 0.03  # a deviation is 0.008
    assert steps["best"] == pytest.approx(1 / 3 - (1 - (2 / 3) ** 4), abs=0.03)


def test_siblings_beside_one_parent_differ_by_their_rewards_alone():
    """lambda only mixes the baseline: (1 + lambda) times the reward minus a mean of siblings' mean and parent."""
    rewards = np.random.default_rng(1).random((5, 2, 3, 4))
    for inter_coef in (0.0, 0.5, 2.0):
        got = generation_advantages(rewards, mode="sibling", inter_coef=inter_coef)
        means = rewards.mean(axis=-1)
        centre, parent = means[:, 1].mean(axis=-1, keepdims=True), means[:, :1, 0]
        baseline = (centre + inter_coef * parent) / (1 + inter_coef)
        np.testing.assert_allclose(got.total[:, 1], (1 + inter_coef) * (means[:, 1] - baseline), atol=1e-12)


def test_refusals():
    one = np.ones((1, 2, 2, 3))
    with pytest.raises(ConfigError, match="'global'.*literal, sibling"):
        generation_advantages(one, mode="global")
    with pytest.raises(ConfigError, match="2 siblings"):
        generation_advantages(one, mode="literal")
    with pytest.raises(ConfigError, match="inter_coef=-1"):
        generation_advantages(one, inter_coef=-1.0)
    with pytest.raises(DataError, match="kept names sibling 2 of 2"):
        generation_advantages(one, kept=np.full((1, 2), 2))
    with pytest.raises(DataError, match=r"\(2, 3\)"):
        generation_advantages(np.ones((2, 3)))
    with pytest.raises(NumericsError, match=r"\(0, 1, 0, 2\)"):
        generation_advantages(np.where(np.arange(12).reshape(one.shape) == 8, np.nan, one))
