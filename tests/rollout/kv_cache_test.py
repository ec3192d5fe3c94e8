import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.errors import ConfigError
from sage_jax.models import ModelConfig
from sage_jax.rollout import kv_cache

BLOCK, LENGTH, HEADS, GROUPS, WIDTH = 8, 40, 4, 2, 6


def model(dtype):
    return ModelConfig(
        vocab_size=16,
        hidden_size=24,
        intermediate_size=32,
        num_layers=2,
        num_heads=HEADS,
        num_kv_heads=GROUPS,
        head_dim=WIDTH,
        dtype=dtype,
    )


def draw(seed, *shape, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def attention_reference(q, k, v, positions):
    """Causal grouped attention of one row in float64, query by query: q [C,H,K], k and v [S,G,K]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for place, position in enumerate(positions):
        for head in range(q.shape[1]):
            group = head // (q.shape[1] // k.shape[1])
            scores = [q[place, head] @ k[s, group] / np.sqrt(q.shape[2]) for s in range(position + 1)]
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            out[place, head] = sum(w * v[s, group] for s, w in enumerate(weights))
    return out


def filled(k, v, slots, dtype="float32", joined=1):
    """A cache layer of 5 slots, noise everywhere, that holds row b of k and v [B,S,G,K] at slots[b]."""
    pair = kv_cache.empty_cache(model(dtype), 5, LENGTH, joined=joined)[0]
    noise = draw(9, 5, LENGTH, GROUPS, WIDTH, dtype=dtype)
    pair = kv_cache.write_rows(pair, kv_cache.as_cache(noise, noise, pair), jnp.arange(5), jnp.zeros(5, jnp.int32))
    return kv_cache.write_rows(pair, kv_cache.as_cache(k, v, pair), slots, jnp.zeros(len(k), jnp.int32))


def attend(pair, slots, q, positions):
    """The attention [B,C,H,K] of queries at `positions` [B,C]."""
    sees = jnp.tile(jnp.asarray(positions), (1, HEADS // GROUPS))
    return kv_cache.unfold_heads(kv_cache.walk(pair, slots, kv_cache.fold_heads(q, GROUPS), sees, BLOCK), q)


@pytest.mark.parametrize("joined", [1, 2])
@pytest.mark.parametrize("starts", [(0, 0, 0), (3, 8, 17), (7, 0, 29)])
def test_attention_over_blocks_is_attention(starts, joined):
    chunk, slots = 3, jnp.array([4, 0, 2])
    k, v = draw(1, 3, 32, GROUPS, WIDTH), draw(2, 3, 32, GROUPS, WIDTH)
    q = draw(3, 3, chunk, HEADS, WIDTH)
    positions = np.array(starts)[:, None] + np.arange(chunk)
    out = attend(filled(k, v, slots, joined=joined), slots, q, positions)
    for row in range(3):
        np.testing.assert_allclose(out[row], attention_reference(q[row], k[row], v[row], positions[row]), atol=1e-6)


@pytest.mark.parametrize("copied", [1, 1 << 30])  # one row at a time, or all
def test_a_longer_neighbour_changes_no_bit(monkeypatch, copied):
    monkeypatch.setattr(kv_cache, "_COPIED", copied)
    k, v, q = draw(1, 2, 32, GROUPS, WIDTH), draw(2, 2, 32, GROUPS, WIDTH), draw(3, 2, 3, HEADS, WIDTH)
    pair, slots = filled(k, v, jnp.array([4, 0])), jnp.array([4, 0])
    outs = [attend(pair, slots, q, np.array([[3], [start]]) + np.arange(3)) for start in (0, 29)]
    np.testing.assert_array_equal(outs[0][0], outs[1][0])
    assert (outs[0][1] != outs[1][1]).any()


@pytest.mark.parametrize(("rows", "copied", "few"), [(32, 1, 32), (32, 100, 4), (6, 200, 3), (7, 400, 1), (8, 900, 1)])
def test_as_many_rows_at_a_time_as_may_be_copied_and_divide_all(monkeypatch, rows, copied, few):
    monkeypatch.setattr(kv_cache, "_COPIED", 700)
    assert kv_cache._rows_at_once(rows, copied) == few


def test_joined_heads_must_divide_the_key_heads():
    with pytest.raises(ConfigError, match="engine.joined_heads=3.*num_kv_heads=2"):
        kv_cache.empty_cache(model("float32"), 5, LENGTH, joined=3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_is_read_and_the_rest_stays(dtype):
    k, v = draw(1, 2, 4, GROUPS, WIDTH, dtype=dtype), draw(2, 2, 4, GROUPS, WIDTH, dtype=dtype)
    before = filled(k, v, jnp.array([0, 1]), dtype)
    after = kv_cache.write_rows(before, kv_cache.as_cache(k, v, before), jnp.array([3, 1]), jnp.array([10, 20]))
    keys, values = kv_cache.read(after, jnp.array([1, 3, 2]), 8, 16)
    assert keys.dtype == values.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(keys[0, :, :, 12:].transpose(2, 0, 1), k[1])
    np.testing.assert_array_equal(values[1, :, 2:6].transpose(1, 0, 2), v[0])
    untouched = kv_cache.read(before, jnp.array([2]), 8, 16)
    np.testing.assert_array_equal(keys[2:], untouched[0])
    np.testing.assert_array_equal(values[2:], untouched[1])


@pytest.mark.parametrize(
    ("dtype", "kept", "size"), [("float32", "", 4), ("bfloat16", "", 2), ("float32", "bfloat16", 2)]
)
def test_bfloat16_takes_half_the_memory(dtype, kept, size):
    cache = kv_cache.empty_cache(model(dtype), 5, LENGTH, kept)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(cache)) == 2 * 2 * 5 * LENGTH * GROUPS * WIDTH * size


def test_attention_over_keys_of_lower_precision_is_attention_over_rounded_ones():
    k, v, q = (draw(seed, 2, 24, groups, WIDTH) for seed, groups in ((1, GROUPS), (2, GROUPS), (3, 2 * GROUPS)))
    slots, starts = jnp.array([4, 0]), jnp.zeros(2, jnp.int32)

    def attention(k, v, kept):
        cache = kv_cache.empty_cache(model("float32"), 5, LENGTH, kept)[0]
        pair = kv_cache.write_rows(cache, kv_cache.as_cache(k, v, cache), slots, starts)
        return attend(pair, slots, q, np.full((2, 24), 23))

    def rounded(x):
        return x.astype(jnp.bfloat16).astype(jnp.float32)

    assert attention(k, v, "bfloat16").dtype == jnp.float32
    np.testing.assert_array_equal(attention(k, v, "bfloat16"), attention(rounded(k), rounded(v), ""))
    assert np.abs(attention(k, v, "bfloat16") - attention(k, v, "")).max() > 1e-4
