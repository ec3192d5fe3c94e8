"""Every implementation of attention against a loop over heads and tokens in float64, or against the plain form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.errors import ConfigError
from sage_jax.models import tiled_attention
from sage_jax.models.attention import attend_packed, attention, block_length, choose, segment_ends, segment_mask

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


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiled_attention, "_TILE", 4)  # 11 tokens: three tiles, the last one short


@pytest.mark.usefixtures("small_tiles")
def test_tiles_equal_a_loop_and_their_gradients_those_of_the_plain_form():
    ends = segment_ends(jnp.asarray(SEGMENTS))

    def outcome(implementation):
        attend = attend_packed(ends, implementation=implementation)
        return jax.jit(attend)(*_inputs()), jax.jit(jax.grad(lambda qkv: (attend(*qkv) ** 2).sum()))(_inputs())

    (out, gradients), (_, plain) = outcome("tiled"), outcome("xla")
    np.testing.assert_allclose(out, _reference(*_inputs(), SEGMENTS), atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradients, plain)


@pytest.mark.usefixtures("small_tiles")
def test_tiles_hold_with_scores_beyond_the_range_of_exp_and_in_bfloat16():
    q, k, v = _inputs()
    attend = jax.jit(attend_packed(segment_ends(jnp.asarray(SEGMENTS)), implementation="tiled"))
    assert np.isfinite(attend(q * 1e3, k * 1e3, v)).all()
    narrow = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    assert attend(*narrow).dtype == jnp.bfloat16
    np.testing.assert_allclose(attend(*narrow).astype(np.float32), _reference(*narrow, SEGMENTS), atol=0.05)


@pytest.mark.usefixtures("small_tiles")
def test_ends_of_a_tree_let_branches_see_their_stem_and_not_each_other():
    # Stem 0-3, branch 4-6 (which has the leaf 6), branch 7-10.
    ends = np.array([[11] * 4 + [7] * 3 + [11] * 4] * ROWS)
    q, k, v = _inputs()
    out = attend_packed(jnp.asarray(ends), implementation="tiled")(q, k, v)
    for branch in (range(4, 7), range(7, 11)):
        alone = [np.asarray(x)[:, [*range(4), *branch]] for x in (q, k, v)]
        one = attend_packed(segment_ends(jnp.ones(alone[0].shape[:2], int)), implementation="xla")(*alone)
        np.testing.assert_allclose(out[:, list(branch)], one[:, 4:], atol=1e-5)


def test_splash_in_the_interpreter_equals_the_plain_form():
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 128, heads, 8)), jnp.float32) for heads in (2, 1, 1))
    ends = segment_ends(jnp.asarray([[1] * 50 + [2] * 60 + [0] * 18]))

    def outcome(implementation):
        attend = attend_packed(ends, implementation=implementation)
        return jax.jit(jax.value_and_grad(lambda qkv: (attend(*qkv) ** 2).sum()))((q, k, v))

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), outcome("splash"), outcome("xla"))


def test_ends_are_those_of_runs_of_equal_segments():
    assert segment_ends(jnp.array([[1, 1, 2, 0, 0], [3, 1, 1, 1, 1]])).tolist() == [[2, 2, 3, 5, 5], [1, 5, 5, 5, 5]]


def test_the_choice_follows_the_platform_and_what_a_kernel_can_do():
    assert choose("auto", length=1024, dtype=jnp.float32) == "tiled"  # the tests run on a CPU
    assert choose("cudnn", length=7, dtype=jnp.float32) == "cudnn"
    for options in ({"length": 100}, {"length": 128, "tree": True}):
        with pytest.raises(ConfigError, match="attention='splash' with rows of"):
            choose("splash", dtype=jnp.float32, **options)
    with pytest.raises(ConfigError, match="flash"):
        choose("flash", length=128, dtype=jnp.float32)
