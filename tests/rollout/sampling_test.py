import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.rollout.sampling import SamplingRows, _gumbel, sample, truncation_threshold

DRAWS = 4096
jit_sample = jax.jit(sample)
LOGITS = np.array([2.0, 1.5, 1.0, 0.0, -1.0, -2.0, 0.5, -6.0], np.float32)


def rows(count, *, temperature=1.0, top_p=1.0, top_k=0, first_seed=0):
    seeds = np.stack([np.zeros(count), first_seed + np.arange(count)], axis=-1).astype(np.uint32)
    fill = lambda value, dtype: np.full(count, value, dtype)  # noqa: E731
    return SamplingRows(seeds, fill(temperature, np.float32), fill(top_p, np.float32), fill(top_k, np.int32))


def draw(logits, allowed=None, position=3, **sampling):
    """Draws from the same logits with DRAWS seeds."""
    tiled = np.tile(np.asarray(logits, np.float32), (DRAWS, 1))
    allowed = None if allowed is None else np.tile(allowed, (DRAWS, 1))
    positions = np.full(DRAWS, position, np.int32)
    return [np.asarray(x) for x in jit_sample(tiled, positions, rows(DRAWS, **sampling), allowed)]


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / weights.sum()


def truncated(logits, top_p=1.0, top_k=0):
    """Reference by sorting: a token stays when it is among the top k, and the mass before it is below top_p."""
    probabilities = softmax(logits)
    kept = np.zeros(len(logits), bool)
    before = 0.0
    for rank, token in enumerate(np.argsort(-probabilities, kind="stable")):
        kept[token] = before < top_p and (top_k == 0 or rank < top_k)
        before += probabilities[token]
    probabilities = np.where(kept, probabilities, 0.0)
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.8}, {"top_k": 4, "top_p": 0.6}],
    ids=str,
)
def test_draws_follow_the_truncated_softmax(options):
    tempered = LOGITS / options.get("temperature", 1.0)
    expected = truncated(tempered, options.get("top_p", 1.0), options.get("top_k", 0))
    ids, logprobs, sampled = draw(LOGITS, **options)
    counts = np.bincount(ids, minlength=len(LOGITS))
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = (((counts - DRAWS * expected) ** 2)[possible] / (DRAWS * expected[possible])).sum()
    assert chi_square < 24.3  # 99.9 % point at 7 degrees of freedom; the seeds are fixed
    np.testing.assert_allclose(logprobs, np.log(softmax(tempered))[ids], atol=1e-5)
    np.testing.assert_allclose(sampled, np.log(expected[ids]), atol=1e-5)


def test_allowed_restricts_the_draw_and_only_the_sampled_logprobs():
    allowed = np.array([False, True, False, True, True, False, False, False])
    expected = softmax(np.where(allowed, LOGITS, -np.inf))
    ids, logprobs, sampled = draw(LOGITS, allowed)
    counts = np.bincount(ids, minlength=len(LOGITS))
    assert counts[~allowed].sum() == 0
    assert (((counts - DRAWS * expected) ** 2)[allowed] / (DRAWS * expected[allowed])).sum() < 13.8  # 2 degrees
    np.testing.assert_allclose(logprobs, np.log(softmax(LOGITS))[ids], atol=1e-5)
    np.testing.assert_allclose(sampled, np.log(expected[ids]), atol=1e-5)


def test_greedy_takes_the_first_largest_and_reports_the_plain_softmax():
    logits = np.array([0.0, 3.0, 1.0, 3.0, 2.0, 0.0, 0.0, 0.0], np.float32)
    ids, logprobs, sampled = draw(logits, temperature=0.0, top_k=2)
    assert set(ids.tolist()) == {1}
    np.testing.assert_allclose(logprobs, np.log(softmax(logits))[1], atol=1e-6)
    assert (sampled == 0).all()


def test_greedy_obeys_the_allowed_ids():
    ids, _, _ = draw(LOGITS, np.arange(8) >= 3, temperature=0.0)
    assert set(ids.tolist()) == {6}


def test_seed_and_position_decide_the_draw_and_the_row_does_not():
    logits = np.zeros((16, 96), np.float32)
    positions = np.arange(16, dtype=np.int32)
    params = rows(16, first_seed=40)
    ids, logprobs, _ = jit_sample(logits, positions, params)
    order = np.random.default_rng(0).permutation(16)
    shuffled = SamplingRows(*(array[order] for array in params))
    ids_again, logprobs_again, _ = jit_sample(logits, positions[order], shuffled)
    np.testing.assert_array_equal(ids_again, ids[order])
    np.testing.assert_array_equal(logprobs_again, logprobs[order])
    other_positions, _, _ = jit_sample(logits, positions + 1, params)
    other_seeds, _, _ = jit_sample(logits, positions, rows(16, first_seed=90))
    assert (other_positions != ids).any()
    assert (other_seeds != ids).any()


def test_both_words_of_a_seed_count():
    high = rows(16)._replace(seeds=np.stack([np.arange(16), np.zeros(16)], axis=-1).astype(np.uint32))
    ids_low, _, _ = jit_sample(np.zeros((16, 96), np.float32), np.zeros(16, np.int32), rows(16))
    ids_high, _, _ = jit_sample(np.zeros((16, 96), np.float32), np.zeros(16, np.int32), high)
    assert ids_low[0] == ids_high[0]
    assert (ids_low[1:] != ids_high[1:]).any()


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=12, max_size=12, unique=True),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
)
def test_threshold_keeps_what_sorting_keeps(logits, top_k, top_p):
    logits = np.asarray(logits, np.float32)
    probabilities = np.sort(softmax(logits))[::-1]
    before = np.concatenate([[0.0], np.cumsum(probabilities)[:-1]])
    if np.abs(before - top_p).min() < 1e-5:
        return  # a mass that equals top_p to rounding may fall on either side
    params = SamplingRows(
        np.zeros((1, 2), np.uint32), *(np.array([x], np.float32) for x in (1.0, top_p)), np.array([top_k])
    )
    threshold = np.asarray(jax.jit(truncation_threshold)(logits[None], params))
    np.testing.assert_array_equal(logits >= threshold, truncated(logits, top_p, top_k) > 0)


@pytest.mark.parametrize("top_p", [1e-46, 1e-40, 1e-38, 1e-30, 1e-9])
def test_the_least_top_p_keeps_the_most_likely_token(top_p):
    # In float32 the first is 0, the second 0 to a device that flushes subnormals: less mass than any token has.
    ids, logprobs, sampled = draw(LOGITS[::-1], top_p=top_p)
    assert set(ids.tolist()) == {len(LOGITS) - 1}
    np.testing.assert_allclose(logprobs, np.log(softmax(LOGITS))[0], atol=1e-5)
    np.testing.assert_array_equal(sampled, 0)


def test_rows_that_truncate_leave_the_others_alone():
    logits = np.random.default_rng(0).normal(size=(16, 96)).astype(np.float32)
    positions = np.arange(16, dtype=np.int32)
    plain = rows(16)
    mixed = plain._replace(top_k=np.array([0, 5] * 8, np.int32), top_p=np.array([1.0, 0.7] * 8, np.float32))
    for array, mixed_array in zip(sample(logits, positions, plain), jit_sample(logits, positions, mixed), strict=True):
        np.testing.assert_array_equal(array[::2], mixed_array[::2])


@pytest.mark.parametrize("size", [33, 2048])
@pytest.mark.parametrize(("seed", "position"), [((0, 0), 0), ((2**32 - 1, 7), 123_456), ((5, 2**31), 2**31 - 1)])
def test_noise_is_that_of_jax_random_in_every_bit(seed, position, size):
    words = np.array(seed, np.uint32)
    key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), np.int32(position))
    expected = jax.random.gumbel(key, (size,))
    np.testing.assert_array_equal(jax.jit(_gumbel, static_argnums=2)(words, np.int32(position), size), expected)
