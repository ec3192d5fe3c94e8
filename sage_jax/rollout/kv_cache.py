"""The key-value cache of the embedded engine, and attention over it in blocks.

A slot's keys and values lie at their absolute positions. Attention walks a slot in blocks with a running softmax: a
block behind the end of a context multiplies its sums by exactly 1 and adds exactly 0, so that how far the walk goes
changes no bit.

bfloat16 is stored as its bits: a CPU reads scattered slots only as numbers that it can compute with, and would turn
the whole cache into float32 at every step. Queries of another dtype widen what they read, block by block.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sage_jax.errors import ConfigError
from sage_jax.models import ModelConfig

_FAR_BELOW = -1e30  # finite, so that a masked block before the first real one gives no NaN; it is later scaled by 0
# Keys [S, G, K, positions] and values [S, G/J, positions, J*K] of one layer.
Pair = tuple[jax.Array, jax.Array]
Cache = tuple[Pair, ...]
_BITS = jnp.uint16  # of bfloat16
_COPIED = 512 << 10  # bytes of keys that attention copies at a time, so that a core's cache holds them and the values


def empty_cache(model: ModelConfig, slots: int, length: int, dtype: str = "", joined: int = 1) -> Cache:
    """Returns zeroed keys [S, G, K, length] and values [S, G/J, length, J*K] of every layer.

    Keys lie transposed because the product with a few queries is then a plain row-major one: a third less time in the
    attention of a decode step on a CPU.

    Args:
      model: the model.
      slots: S.
      length: positions of a slot.
      dtype: of the numbers; "" is the model's.
      joined: J, heads whose values lie side by side. XLA:CPU reads rows of 128 numbers a third faster than rows of 64;
        for that, each head's weights also multiply the values of the others.

    Raises:
      ConfigError: `joined` does not divide the key heads.
    """
    groups, width = model.num_kv_heads, model.head_dim
    if groups % joined:
        raise ConfigError(f"engine.joined_heads={joined}: must divide model.num_kv_heads={groups}")
    keys, values = (slots, groups, width, length), (slots, groups // joined, length, joined * width)
    numbers = jnp.dtype(dtype or model.dtype)
    stored = _BITS if numbers == jnp.bfloat16 else numbers
    return tuple((jnp.zeros(keys, stored), jnp.zeros(values, stored)) for _ in range(model.num_layers))


def _as_stored(x: jax.Array, cache: jax.Array) -> jax.Array:
    """Returns `x` as `cache` holds it."""
    return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), _BITS) if cache.dtype == _BITS else x


def _numbers(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == _BITS else x


def as_cache(k: Float[Array, "b c g k"], v: Float[Array, "b c g k"], pair: Pair) -> Pair:
    """Lays new keys and values out as `pair` has them: [B, G, K, C] and [B, G/J, C, J*K]."""
    _, places, _, wide = pair[1].shape
    return k.transpose(0, 2, 3, 1), v.reshape(*v.shape[:2], places, wide).transpose(0, 2, 1, 3)


def read(pair: Pair, slots: Int[Array, "b"], start: jax.Array, length: int) -> Pair:
    """Reads `length` positions of each slot, as kept: keys [B, G, K, length], values [B, G/J, length, J*K]."""
    _, groups, width, _ = pair[0].shape
    _, places, _, wide = pair[1].shape

    def one(slot: jax.Array) -> Pair:
        keys = jax.lax.dynamic_slice(pair[0], (slot, 0, 0, start), (1, groups, width, length))
        values = jax.lax.dynamic_slice(pair[1], (slot, 0, start, 0), (1, places, length, wide))
        return keys[0], values[0]

    keys, values = jax.vmap(one)(slots)
    return _numbers(keys), _numbers(values)


def write_rows(pair: Pair, new: Pair, slots: Int[Array, "b"], starts: Int[Array, "b"]) -> Pair:
    """Puts row b of the new keys and values at starts[b] of slots[b], in place, one after the other."""
    stored = tuple(map(_as_stored, new, pair))

    def write_row(row: jax.Array, pair: Pair) -> Pair:
        keys, values = (jax.lax.dynamic_slice_in_dim(array, row, 1, axis=0) for array in stored)
        return (
            jax.lax.dynamic_update_slice(pair[0], keys, (slots[row], 0, 0, starts[row])),
            jax.lax.dynamic_update_slice(pair[1], values, (slots[row], 0, starts[row], 0)),
        )

    return jax.lax.fori_loop(0, slots.shape[0], write_row, pair, unroll=min(8, slots.shape[0]))


class Sums(NamedTuple):
    """Running softmax of a set of queries: largest score, sum of weights [..., T], weighted values [..., T, K]."""

    top: jax.Array
    total: jax.Array
    values: jax.Array


def start_sums(q: Float[Array, "b g t k"]) -> Sums:
    """Returns the sums of queries that have seen nothing."""
    top = jnp.full(q.shape[:-1], _FAR_BELOW, jnp.float32)
    return Sums(top, jnp.zeros_like(top), jnp.zeros(q.shape, jnp.float32))


def add_block(
    sums: Sums,
    q: Float[Array, "b g t k"],
    k: Float[Array, "b g k s"],
    v: Float[Array, "b p s jk"],
    visible: Bool[Array, "b t s"],
) -> Sums:
    """Lets the queries see one block more, as it lies in the cache (running softmax: arXiv 1805.02867, algorithm 3)."""
    scores = jnp.einsum("bgtk,bgks->bgts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None], scores, _FAR_BELOW)
    top = jnp.maximum(sums.top, jnp.max(scores, axis=-1))
    shrink = jnp.exp(sums.top - top)
    weights = jnp.exp(scores - top[..., None])
    values = _weighted(weights.astype(v.dtype), v)
    return Sums(top, sums.total * shrink + jnp.sum(weights, axis=-1), sums.values * shrink[..., None] + values)


def _weighted(weights: Float[Array, "b g t s"], v: Float[Array, "b p s jk"]) -> Float[Array, "b g t k"]:
    """Returns each head's weighted sum of its own values."""
    rows, groups, queries, length = weights.shape
    places = v.shape[1]
    joined = groups // places
    together = weights.reshape(rows, places, joined * queries, length)
    out = jnp.einsum("bpts,bpsk->bptk", together, v, preferred_element_type=jnp.float32)
    out = out.reshape(rows, places, joined, queries, joined, -1)
    own = [out[:, :, head, :, head] for head in range(joined)]
    return jnp.stack(own, axis=2).reshape(rows, groups, queries, -1)


def walk(pair: Pair, slots: Int[Array, "b"], q: Float[Array, "b g t k"], sees: Int[Array, "b t"], block: int) -> Sums:
    """Lets the queries of row b see slots[b] up to their own position.

    A few rows at a time: what is read is copied first, and copies of all rows would leave a core's cache again.

    Args:
      pair: one layer of the cache.
      slots: row of the cache of each row of queries [B].
      q: folded queries.
      sees: last position that each query sees [B, T].
      block: positions read at a time.
    """
    _, groups, width, _ = pair[0].shape
    few = _rows_at_once(len(slots), groups * width * block * q.dtype.itemsize)

    def attend(part: tuple[jax.Array, ...]) -> Sums:
        slots, q, sees = part

        def step(index: jax.Array, sums: Sums) -> Sums:
            start = index * block
            keys, values = (array.astype(q.dtype) for array in read(pair, slots, start, block))
            return add_block(sums, q, keys, values, start + jnp.arange(block) <= sees[..., None])

        return jax.lax.fori_loop(0, jnp.max(sees) // block + 1, step, start_sums(q))

    parts = tuple(array.reshape(-1, few, *array.shape[1:]) for array in (slots, q, sees))
    return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), jax.lax.map(attend, parts))


def _rows_at_once(rows: int, copied: int) -> int:
    """Returns the largest divisor of `rows` of which the keys, `copied` bytes a row, take no more than `_COPIED`."""
    return max(few for few in range(1, rows + 1) if rows % few == 0 and few <= max(1, _COPIED // copied))


def fold_heads(q: Float[Array, "b c h k"], groups: int) -> Float[Array, "b g t k"]:
    """Scales queries and lays the heads that share a key head side by side: t = (H / G) * C."""
    rows, chunk, heads, width = q.shape
    q = q.reshape(rows, chunk, groups, heads // groups, width) * width**-0.5
    return q.transpose(0, 2, 3, 1, 4).reshape(rows, groups, heads // groups * chunk, width)


def unfold_heads(sums: Sums, like: Float[Array, "b c h k"]) -> Float[Array, "b c h k"]:
    """Returns the attention's output, laid out as the queries were before `fold_heads`."""
    rows, chunk, heads, width = like.shape
    out = sums.values / sums.total[..., None]
    groups = out.shape[1]
    out = out.reshape(rows, groups, heads // groups, chunk, width).transpose(0, 3, 1, 2, 4)
    return out.reshape(like.shape).astype(like.dtype)
