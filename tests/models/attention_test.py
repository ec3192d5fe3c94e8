"""Attention against a loop over heads and tokens in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.errors import ConfigError
from sage_jax.models.attention import attention, block_length, segment_mask

ROWS, LENGTH, HEADS, GROUPS, WIDTH = 2, 11, 6, 2, 4
SEGMENTS = np.array([[1] * 4 + [2] * 5 + [0] * 2, [3] * 1 + [1] * 10])


def _inputs():
    rng = np.random.default_rng(0)
    shapes = [(ROWS, LENGTH, n, WIDTH) for n in (HEADS, GROUPS, GROUPS)]
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def _reference(q, k, v, segments):
    """Loops; one query of one head at a time, over the earlier tokens of its own segment."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for row in range(ROWS):
        for t in range(LENGTH):
            seen = [s for s in range(t + 1) if segments[row, s] == segments[row, t]]
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                scores = np.array([q[row, t, head] @ k[row, s, group] / 2.0 for s in seen])  # sqrt(4) = 2
                weights = np.exp(scores) / np.exp(scores).sum()
                out[row, t, head] = sum(w * v[row, s, group] for w, s in zip(weights, seen, strict=True))
    return out


@pytest.mark.parametrize("implementation", ["xla", "recompute"])
@pytest.mark.parametrize("block", [None, 4])
def test_equals_a_loop_whatever_the_block(implementation, block):
    q, k, v = _inputs()
    run = jax.jit(functools.partial(attention, implementation=implementation, block=block))
    out = run(q, k, v, segment_mask(SEGMENTS))
    np.testing.assert_allclose(out, _reference(q, k, v, SEGMENTS), atol=1e-5)


def test_gradients_do_not_depend_on_blocks_or_recomputing():
    mask = segment_mask(SEGMENTS)

    def gradient(**options):
        return jax.jit(jax.grad(lambda qkv: (attention(*qkv, mask, **options) ** 2).sum()))(_inputs())

    whole = gradient()
    for other in (gradient(block=4), gradient(block=4, implementation="recompute")):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole, other)


def test_new_queries_over_more_keys_take_the_rows_of_the_full_result():
    q, k, v = _inputs()
    mask = segment_mask(SEGMENTS)
    full = attention(q, k, v, mask)
    np.testing.assert_allclose(attention(q[:, 7:], k, v, mask[:, 7:]), full[:, 7:], atol=1e-6)


def test_scores_far_beyond_the_range_of_exp_stay_finite():
    q, k, v = _inputs()
    out = attention(q * 1e3, k * 1e3, v, segment_mask(SEGMENTS))
    assert np.isfinite(out).all()


def test_bfloat16_keeps_its_dtype():
    q, k, v = (x.astype(jnp.bfloat16) for x in _inputs())
    out = attention(q, k, v, segment_mask(SEGMENTS))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(np.float32), _reference(q, k, v, SEGMENTS), atol=0.05)


def test_mask_is_causal_inside_segments_and_never_empty():
    mask = np.asarray(segment_mask(np.array([[1, 1, 2, 0]])))[0]
    assert mask.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_block_length_bounds_the_number_of_blocks():
    assert block_length(20) == 128
    assert block_length(2048) == 128
    assert block_length(8192) == 512
    assert block_length(8193) == 513


def test_unknown_implementation_is_refused():
    with pytest.raises(ConfigError, match="flash"):
        attention(*_inputs(), segment_mask(SEGMENTS), implementation="flash")
