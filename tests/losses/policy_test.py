"""The policy loss: references, arithmetic by hand, gradients, masks, aggregation, micro-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from sage_jax.errors import ConfigError
from sage_jax.losses import clipped_surrogate, kl_estimate, policy_loss, sft_loss, token_weights
from sage_jax.losses.policy import AGGREGATIONS, KL_KINDS, RATIO_LEVELS
from sage_jax.testing import references

COUNT = 6  # One size, so that hypothesis does not compile a program for each example.


def arrays(rng):
    """Returns the per-token inputs of a loss, off-policy and off-reference by up to a nat."""
    logprobs = -rng.uniform(0.1, 4.0, COUNT)
    return {
        "logprobs": logprobs,
        "advantages": rng.normal(size=COUNT),
        "old_logprobs": logprobs + rng.uniform(-1.5, 1.5, COUNT),
        "ref_logprobs": logprobs + rng.uniform(-1, 1, COUNT),
        "engine_logprobs": logprobs + rng.uniform(-1, 1, COUNT),
        "entropy": rng.uniform(0, 2, COUNT),
    }


OPTIONS = {
    "clip_low": 0.2,
    "clip_high": 0.28,
    "dual_clip": 3.0,
    "kl_coef": 0.05,
    "kl_kind": "k3",
    "entropy_coef": 0.01,
    "importance_cap": 2.0,
}


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    mask=st.lists(st.booleans(), min_size=COUNT, max_size=COUNT),
    ids=st.lists(st.integers(0, 3), min_size=COUNT, max_size=COUNT),
    aggregation=st.sampled_from(AGGREGATIONS),
    kl_kind=st.sampled_from(KL_KINDS),
    dual_clip=st.sampled_from([None, 1.5]),
    importance_cap=st.sampled_from([None, 1.2]),
    ratio_level=st.sampled_from(RATIO_LEVELS),
    importance_level=st.sampled_from([None, *RATIO_LEVELS]),
)
def test_equals_the_reference(
    seed, mask, ids, aggregation, kl_kind, dual_clip, importance_cap, ratio_level, importance_level
):
    inputs, mask, ids = arrays(np.random.default_rng(seed)), np.array(mask, np.float32), np.array(ids)
    options = OPTIONS | {"kl_kind": kl_kind, "dual_clip": dual_clip, "importance_cap": importance_cap}
    weights = token_weights(mask, aggregation=aggregation, sequence_ids=ids, length=10)
    want_weights = references.token_weights(mask, ids, aggregation=aggregation, length=10)
    np.testing.assert_allclose(weights, want_weights, rtol=1e-6)
    levels = (ratio_level, importance_level or ratio_level)
    of_sequences = {
        name: ids if level == "sequence" else None
        for name, level in zip(("sequence_ids", "importance_ids"), levels, strict=True)
    }
    got, _ = policy_loss(
        mask=mask,
        weights=weights,
        ratio_level=ratio_level,
        importance_level=importance_level,
        sequence_ids=ids if "sequence" in levels else None,
        **jax.tree.map(jnp.float32, inputs),
        **options,
    )
    want = references.policy_loss(weights=want_weights, **inputs, **options, **of_sequences)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_hand_worked_clips():
    # ratios 1, 1.5, 0.5, 1.5, 0.5, 4 with clip 0.8 .. 1.2 and dual clip 3:
    ratio = jnp.array([1.0, 1.5, 0.5, 1.5, 0.5, 4.0])
    advantages = jnp.array([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    losses, got, clips = clipped_surrogate(jnp.log(ratio), jnp.zeros(6), advantages, dual_clip=3.0)
    # -2*1 | -2*1.2, gain capped | -2*0.5, the clip may not flatter | 2*1.5 | 2*0.8, loss capped | 2*3 instead of 2*4
    np.testing.assert_allclose(losses, [-2.0, -2.4, -1.0, 3.0, 1.6, 6.0], rtol=1e-6)
    np.testing.assert_allclose(got, ratio, rtol=1e-6)
    assert np.flatnonzero(clips["high"]).tolist() == [1]
    assert np.flatnonzero(clips["low"]).tolist() == [4]
    assert np.flatnonzero(clips["dual"]).tolist() == [5]


def test_clipped_tokens_have_no_gradient_and_others_the_policy_gradient():
    ratio = jnp.array([1.0, 1.5, 0.5, 1.5, 0.5, 4.0])
    advantages = jnp.array([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])

    def total(logprobs):
        return clipped_surrogate(logprobs, jnp.zeros(6), advantages, dual_clip=3.0)[0].sum()

    # d(-A r) / d logprob = -A r where no clip decides.
    np.testing.assert_allclose(jax.grad(total)(jnp.log(ratio)), [-2.0, 0.0, -1.0, 3.0, 0.0, 0.0], rtol=1e-6)


def test_hand_worked_kl():
    # Policy 1/2, reference 1/4: d = ln 2. k1 = 0.693147, k2 = 0.240227, k3 = 1/2 - 1 + 0.693147 = 0.193147.
    logprob, ref = jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25]))
    for kind, want in {"k1": 0.693147, "k2": 0.240227, "k3": 0.193147}.items():
        np.testing.assert_allclose(kl_estimate(logprob, ref, kind=kind), [want], rtol=1e-5)


def test_kl_estimates_average_to_the_true_kl():
    policy, reference = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    true = float(np.sum(policy * np.log(policy / reference)))
    for kind in ("k1", "k3"):
        estimates = kl_estimate(jnp.log(jnp.array(policy)), jnp.log(jnp.array(reference)), kind=kind)
        np.testing.assert_allclose(np.sum(policy * np.asarray(estimates)), true, rtol=1e-5)


def test_hand_worked_aggregation():
    # Sequence 4 has 3 trained tokens, sequence 2 has 1, sequence 0 none.
    mask, ids = jnp.array([1, 1, 0, 1, 1, 0]), jnp.array([4, 4, 4, 4, 2, 0])
    np.testing.assert_allclose(token_weights(mask), np.array([1, 1, 0, 1, 1, 0]) / 4)
    sequence = token_weights(mask, aggregation="sequence_mean", sequence_ids=ids)
    np.testing.assert_allclose(sequence, [1 / 6, 1 / 6, 0, 1 / 6, 1 / 2, 0], rtol=1e-6)
    constant = token_weights(mask, aggregation="constant_length", sequence_ids=ids, length=5)
    np.testing.assert_allclose(constant, np.array([1, 1, 0, 1, 1, 0]) / 10, rtol=1e-6)


def test_gradients():
    inputs = jax.tree.map(jnp.float32, arrays(np.random.default_rng(3)))
    mask = jnp.array([1, 1, 0, 1, 1, 1])
    rest = {name: inputs[name] for name in ("advantages", "old_logprobs", "ref_logprobs", "engine_logprobs")}

    def loss(logprobs, entropy):
        return policy_loss(logprobs, mask=mask, entropy=entropy, **rest, **OPTIONS)[0]

    check_grads(jax.jit(loss), (inputs["logprobs"], inputs["entropy"]), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_on_policy_gradient_is_the_plain_policy_gradient():
    inputs, mask = arrays(np.random.default_rng(1)), jnp.array([1, 1, 0, 1, 1, 1])
    advantages = jnp.float32(inputs["advantages"])
    grad = jax.grad(lambda logprobs: policy_loss(logprobs, advantages, mask)[0])(jnp.float32(inputs["logprobs"]))
    # d/d logprob of -mean_t A_t r_t at r = 1 is -A_t / 5.
    np.testing.assert_allclose(grad, -advantages * mask / 5, rtol=1e-6)


def test_zero_advantage_gives_zero_gradient():
    inputs = jax.tree.map(jnp.float32, arrays(np.random.default_rng(2)))
    grad = jax.grad(lambda x: policy_loss(x, jnp.zeros(COUNT), jnp.ones(COUNT), dual_clip=3.0)[0])(inputs["logprobs"])
    assert not np.any(grad)


def test_masked_tokens_have_no_influence():
    inputs = jax.tree.map(jnp.float32, arrays(np.random.default_rng(4)))
    mask = jnp.array([1, 0, 1, 1, 0, 1])

    def run(inputs):
        def loss(logprobs, entropy):
            return policy_loss(mask=mask, **(inputs | {"logprobs": logprobs, "entropy": entropy}), **OPTIONS)

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(inputs["logprobs"], inputs["entropy"])

    want = run(inputs)
    for poison in (np.nan, np.inf, -1e30, 1e30):
        poisoned = jax.tree.map(lambda array, value=poison: jnp.where(mask > 0, array, value), inputs)
        jax.tree.map(np.testing.assert_array_equal, run(poisoned), want)
    assert not np.any(np.asarray(want[1][0])[np.asarray(mask) == 0])


def test_a_nan_in_a_trained_place_shows():
    inputs = jax.tree.map(jnp.float32, arrays(np.random.default_rng(5)))
    inputs["advantages"] = inputs["advantages"].at[2].set(jnp.nan)
    assert jnp.isnan(policy_loss(mask=jnp.ones(COUNT), **inputs, **OPTIONS)[0])


def test_nothing_trained_is_zero():
    inputs = jax.tree.map(jnp.float32, arrays(np.random.default_rng(6)))
    loss, aux = policy_loss(mask=jnp.zeros(COUNT), **inputs, **OPTIONS)
    assert float(loss) == 0
    assert all(float(value) == 0 for value in aux.values())


def test_extreme_ratios_have_finite_gradients():
    logprobs, old = jnp.array([-0.1, -90.0]), jnp.array([-200.0, -0.1])
    for advantage in (1.0, -1.0):
        grad = jax.grad(lambda x, a=advantage: policy_loss(x, jnp.full(2, a), jnp.ones(2), old_logprobs=old)[0])(
            logprobs
        )
        assert np.isfinite(grad).all()


def test_metrics_by_hand():
    # Trained: tokens 0, 1, 2. Ratios e^0 = 1, e^ln 2 = 2, e^-ln 2 = 0.5 -> mean 3.5 / 3, largest 2.
    old = jnp.array([-1.0, -1.0, -1.0, -1.0])
    logprobs = old + jnp.log(jnp.array([1.0, 2.0, 0.5, 9.0]))
    _, aux = policy_loss(
        logprobs,
        jnp.array([1.0, 1.0, -1.0, 1.0]),
        jnp.array([1, 1, 1, 0]),
        old_logprobs=old,
        engine_logprobs=old + jnp.array([0.1, -0.3, 0.2, 5.0]),
        importance_cap=1.1,
    )
    np.testing.assert_allclose(aux["ratio"], 3.5 / 3, rtol=1e-6)
    np.testing.assert_allclose(aux["ratio_max"], 2, rtol=1e-6)
    np.testing.assert_allclose([aux["clip_high"], aux["clip_low"], aux["clip_dual"]], [1 / 3, 1 / 3, 0], rtol=1e-6)
    # exp(-0.1) - 1 + 0.1 = 0.004837, exp(0.3) - 1.3 = 0.049859, exp(-0.2) - 0.8 = 0.018731 -> mean 0.024476
    np.testing.assert_allclose(aux["engine_kl"], 0.024476, rtol=1e-4)
    np.testing.assert_allclose([aux["engine_gap"], aux["engine_gap_max"]], [0.2, 0.3], rtol=1e-5)
    # exp(-0.1) = 0.904837, exp(0.3) cut to 1.1, exp(-0.2) = 0.818731 -> mean 0.941189
    np.testing.assert_allclose(aux["importance_weight"], 0.941189, rtol=1e-5)


def test_hand_worked_importance_of_sequences():
    # Gaps old - engine: 0.5, 0.2 in sequence 0; -0.4, (masked), -0.1 in sequence 1; ratios are 1, advantages 1.
    # Tokens: e^0.5 = 1.648721, e^0.2 = 1.221403, e^-0.4 = 0.670320, e^-0.1 = 0.904837.
    # Sequences: e^0.7 = 2.013753, cut to 1.8, twice; e^-0.5 = 0.606531, twice.
    old, gaps = jnp.full(5, -1.0), jnp.array([0.5, 0.2, -0.4, 9.0, -0.1])
    mask, ids = jnp.array([1, 1, 1, 0, 1]), jnp.array([0, 0, 1, 1, 1])

    def run(**options):
        loss, aux = policy_loss(
            old, jnp.ones(5), mask, engine_logprobs=old - gaps, importance_cap=1.8, sequence_ids=ids, **options
        )
        np.testing.assert_allclose(aux["importance_weight"], -loss, rtol=1e-6)
        return -float(loss)

    by_token, by_sequence = 4.445281 / 4, (1.8 + 0.606531) / 2
    assert run() == run(importance_level="token") == pytest.approx(by_token, rel=1e-5)
    assert run(importance_level="sequence") == pytest.approx(by_sequence, rel=1e-5)
    assert run(ratio_level="sequence") == pytest.approx(by_sequence, rel=1e-5)  # as the ratio, unless told otherwise
    assert run(ratio_level="sequence", importance_level="token") == pytest.approx(by_token, rel=1e-5)


def test_importance_of_sequences_does_not_depend_on_order_and_reads_its_own_sequence_alone():
    inputs = jax.tree.map(jnp.float32, arrays(np.random.default_rng(8)))
    ids, order = jnp.array([0, 1, 0, 1, 2, 2]), np.array([5, 3, 0, 4, 1, 2])

    def run(inputs, ids, order=slice(None)):
        inputs = {name: array[order] for name, array in inputs.items()}
        return policy_loss(
            mask=jnp.ones(COUNT), sequence_ids=ids[order], importance_level="sequence", **inputs, **OPTIONS
        )[1]

    want = run(inputs, ids)
    for name, value in run(inputs, ids, order).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(run(inputs, 2 - ids)["importance_weight"], want["importance_weight"], rtol=1e-6)
    shifted = inputs | {"engine_logprobs": inputs["engine_logprobs"] + jnp.array([1.0, 0, -1.0, 0, 0, 0])}
    np.testing.assert_allclose(run(shifted, ids)["importance_weight"], want["importance_weight"], rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    mask=st.lists(st.booleans(), min_size=COUNT, max_size=COUNT),
    level=st.sampled_from(RATIO_LEVELS),
)
def test_advantages_times_the_kept_mass_are_the_surrogate_times_it(seed, mask, level):
    rng, ids = np.random.default_rng(seed), np.array([0, 0, 0, 1, 1, 2])
    inputs, kept = arrays(rng), rng.uniform(0.2, 1.0, COUNT)
    of_sequences = {"importance_ids": ids} if level == "sequence" else {}
    weights = references.token_weights(mask, ids, aggregation="token_mean")
    want = references.policy_loss(weights=weights, kept=kept, **inputs, **OPTIONS, **of_sequences)
    logs = np.where(mask, np.log(kept), 0)
    whole = np.array([logs[ids == i].sum() if level == "sequence" else logs[t] for t, i in enumerate(ids)])
    got, _ = policy_loss(
        mask=np.array(mask),
        importance_level=level,
        sequence_ids=ids,
        **jax.tree.map(jnp.float32, inputs | {"advantages": inputs["advantages"] * np.exp(whole)}),
        **OPTIONS,
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), mask=st.lists(st.booleans(), min_size=COUNT, max_size=COUNT))
def test_the_gap_to_the_engine_equals_the_reference(seed, mask):
    inputs, mask = arrays(np.random.default_rng(seed)), np.array(mask, np.float32)
    _, aux = policy_loss(mask=mask, **jax.tree.map(jnp.float32, inputs))
    want = references.engine_gap(inputs["old_logprobs"], inputs["engine_logprobs"], mask)
    got = [aux[name] for name in ("engine_gap", "engine_gap_max", "engine_kl")]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_hand_worked_kl_of_the_engine():
    # The engine has 1/2 and 1/4, the trainer 1/4 and 1/2. Gaps -ln 2, ln 2:
    # 1/2 - 1 + ln 2 = 0.193147 and 2 - 1 - ln 2 = 0.306853, mean 0.25. An even shift of one nat: e - 1 - 1 = 0.718282.
    engine, old = jnp.log(jnp.array([0.5, 0.25])), jnp.log(jnp.array([0.25, 0.5]))
    for gap, want in ((old - engine, 0.25), (jnp.ones(2), 0.718282), (jnp.zeros(2), 0.0)):
        _, aux = policy_loss(engine, jnp.ones(2), jnp.ones(2), old_logprobs=engine + gap, engine_logprobs=engine)
        np.testing.assert_allclose(aux["engine_kl"], want, atol=1e-6)


def test_kl_of_the_engine_averages_to_the_true_kl_over_its_draws_and_never_depends_on_the_policy():
    engine, trainer = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    true = float(np.sum(engine * np.log(engine / trainer)))
    ids = np.repeat(np.arange(3), (5, 3, 2))  # ten draws of the engine, each id as often as it expects
    old, drawn = jnp.log(trainer[ids]), jnp.log(engine[ids])

    def kl(logprobs, order=slice(None), advantage=1.0):
        values = policy_loss(
            logprobs[order],
            jnp.full(10, advantage),
            jnp.ones(10),
            old_logprobs=old[order],
            engine_logprobs=drawn[order],
        )
        return float(values[1]["engine_kl"])

    np.testing.assert_allclose(kl(old), true, rtol=1e-5)
    np.testing.assert_allclose(kl(old, np.random.default_rng(0).permutation(10)), true, rtol=1e-5)
    assert kl(old - 0.7, advantage=-2.0) == kl(old)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_parts_of_a_batch_add_up_to_the_batch(aggregation):
    inputs = jax.tree.map(jnp.float32, arrays(np.random.default_rng(7)))
    mask, ids = jnp.array([1, 0, 1, 1, 1, 1]), jnp.array([0, 0, 0, 1, 1, 2])
    weights = token_weights(mask, aggregation=aggregation, sequence_ids=ids, length=4)
    whole = policy_loss(mask=mask, weights=weights, **inputs, **OPTIONS)
    parts = [
        policy_loss(
            mask=mask[part],
            weights=weights[part],
            num_tokens=5,
            **{name: array[part] for name, array in inputs.items()},
            **OPTIONS,
        )
        for part in (slice(0, 2), slice(2, 6))
    ]
    np.testing.assert_allclose(parts[0][0] + parts[1][0], whole[0], rtol=1e-5)
    for name, value in whole[1].items():
        combined = max if name.endswith("_max") else sum
        np.testing.assert_allclose(combined(aux[name] for _, aux in parts), value, rtol=1e-5, err_msg=name)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), mask=st.lists(st.booleans(), min_size=COUNT, max_size=COUNT))
def test_sft_equals_the_reference(seed, mask):
    assume(any(mask))
    logprobs = -np.random.default_rng(seed).uniform(0, 5, COUNT)
    poisoned = np.where(mask, logprobs, np.nan)
    ids = np.array([0, 0, 1, 1, 1, 2])
    weights = references.token_weights(mask, ids, aggregation="sequence_mean")
    got, aux = sft_loss(jnp.float32(poisoned), jnp.array(mask), weights=jnp.float32(weights))
    np.testing.assert_allclose(got, references.sft_loss(logprobs, weights), rtol=1e-5)
    np.testing.assert_allclose(aux["loss"], -logprobs[np.array(mask)].mean(), rtol=1e-5)


def test_sft_hand_worked():
    # -(ln 1/2 + ln 1/4) / 2 = 1.039721; one of the two is ranked first.
    logprobs, mask = jnp.log(jnp.array([0.5, 0.25, 0.9])), jnp.array([1, 1, 0])
    loss, aux = sft_loss(logprobs, mask, is_top=jnp.array([True, False, True]))
    np.testing.assert_allclose([loss, aux["accuracy"]], [1.039721, 0.5], rtol=1e-6)


def test_refusals():
    one = jnp.ones(1)
    with pytest.raises(ConfigError, match="'mean'.*token_mean"):
        token_weights(one, aggregation="mean")
    with pytest.raises(ConfigError, match="needs sequence_ids"):
        token_weights(one, aggregation="sequence_mean")
    with pytest.raises(ConfigError, match="length >= 1"):
        token_weights(one, aggregation="constant_length", sequence_ids=jnp.zeros(1, int))
    with pytest.raises(ConfigError, match="'k4'.*k3"):
        kl_estimate(one, one, kind="k4")
    for levels in ({"importance_level": "sequence"}, {"importance_level": "word", "sequence_ids": jnp.zeros(1, int)}):
        with pytest.raises(ConfigError, match="importance_level=.*together with sequence_ids"):
            policy_loss(one, one, one, engine_logprobs=one, importance_cap=2.0, **levels)
    with pytest.raises(ConfigError, match="needs engine_logprobs"):
        policy_loss(one, one, one, importance_cap=2.0)
