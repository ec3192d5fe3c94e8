"""The key-value cache of the embedded engine, and attention over it in blocks.

A slot's keys and values lie at their absolute positions. Attention walks a slot in blocks with a running softmax: a
block behind the end of a context multiplies its sums by exactly 1 and adds exactly 0, so that how far the walk goes
changes no bit.

bfloat16 is stored as its bits: a CPU reads scattered slots only as numbers that it can compute with, and would turn
the whole cache into float32 at every step. Queries of another dtype widen what they read, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sage_jax.models import ModelConfig

_FAR_BELOW = -1e30  # finite, so that a masked block before the first real one gives no NaN; it is later scaled by 0
Pair = tuple[jax.Array, jax.Array]  # keys [S, G, K, positions], values [S, G, positions, K] of one layer
Cache = tuple[Pair, ...]
_BITS = jnp.uint16  # of bfloat16


def empty_cache(model: ModelConfig, slots: int, length: int, dtype: str = "") -> Cache:
    """Returns zeroed keys [S, G, K, length] and values [S, G, length, K] of every layer, in `dtype` or the model's.

    Keys lie transposed because the product with a few queries is then a plain row-major one: a third less time in the
    attention of a decode step on a CPU.
    """
    keys = (slots, model.num_kv_heads, model.head_dim, length)
    values = (slots, model.num_kv_heads, length, model.head_dim)
    numbers = jnp.dtype(dtype or model.dtype)
    stored = _BITS if numbers == jnp.bfloat16 else numbers
    return tuple((jnp.zeros(keys, stored), jnp.zeros(values, stored)) for _ in range(model.num_layers))


def _as_stored(x: jax.Array, cache: jax.Array) -> jax.Array:
    """Returns `x` as `cache` holds it."""
    return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), _BITS) if cache.dtype == _BITS else x


def _numbers(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == _BITS else x


def as_cache(k: Float[Array, "b c g k"], v: Float[Array, "b c g k"]) -> Pair:
    """Lays new keys and values out as the cache has them: [B, G, K, C] and [B, G, C, K]."""
    return k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)


def read(pair: Pair, slots: Int[Array, "b"], start: jax.Array, length: int) -> Pair:
    """Reads `length` positions of each of the slots: keys [B, G, K, length], values [B, G, length, K], as kept."""
    _, groups, width, _ = pair[0].shape

    def one(slot: jax.Array) -> Pair:
        keys = jax.lax.dynamic_slice(pair[0], (slot, 0, 0, start), (1, groups, width, length))
        values = jax.lax.dynamic_slice(pair[1], (slot, 0, start, 0), (1, groups, length, width))
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
    v: Float[Array, "b g s k"],
    visible: Bool[Array, "b t s"],
) -> Sums:
    """Lets the queries see one block more (running softmax: arXiv 1805.02867, algorithm 3)."""
    scores = jnp.einsum("bgtk,bgks->bgts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None], scores, _FAR_BELOW)
    top = jnp.maximum(sums.top, jnp.max(scores, axis=-1))
    shrink = jnp.exp(sums.top - top)
    weights = jnp.exp(scores - top[..., None])
    values = jnp.einsum("bgts,bgsk->bgtk", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return Sums(top, sums.total * shrink + jnp.sum(weights, axis=-1), sums.values * shrink[..., None] + values)


def walk(
    pair: Pair,
    slots: Int[Array, "b"],
    q: Float[Array, "b g t k"],
    visible: Callable[[jax.Array], Bool[Array, "b t s"]],
    blocks: jax.Array,
    block: int,
) -> Sums:
    """Lets the queries of row b see the first `blocks` blocks of slots[b].

    Args:
      pair: one layer of the cache.
      slots: row of the cache of each row of queries [B].
      q: folded queries.
      visible: cache positions [s] -> which of them each query sees.
      blocks: how many blocks to walk.
      block: positions in each.
    """

    def step(index: jax.Array, sums: Sums) -> Sums:
        start = index * block
        keys, values = (array.astype(q.dtype) for array in read(pair, slots, start, block))
        return add_block(sums, q, keys, values, visible(start + jnp.arange(block)))

    return jax.lax.fori_loop(0, blocks, step, start_sums(q))


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
