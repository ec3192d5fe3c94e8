"""The two device programs of the embedded engine: prefill a few rows of tokens, decode a few tokens of every slot.

Every shape is static and nothing a row computes depends on another row:

- A slot's keys and values lie at their absolute positions. Attention walks the cache in blocks, with a running
  softmax, as far as the longest running slot needs; a block behind a slot's own end multiplies its sums by exactly 1
  and adds exactly 0.
- Keys and values of the prompt, all but its last token, come from `prefill`; those of the last prompt token and of
  the sampled tokens come from `decode` and are not reused by the next turn, which prefills them again. So a turn's
  numbers are the same whether its history was still cached or not.
- A slot decodes every step of each dispatch until it stops, so that its steps fall into the same dispatches whatever
  else is running.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sage_jax.errors import ConfigError
from sage_jax.models import ModelConfig, Params, forward_cached, head_weights
from sage_jax.rollout.sampling import SamplingRows, sample

_FAR_BELOW = -1e30  # finite, so that a masked block before the first real one gives no NaN; it is later scaled by 0
_MIN_ROWS = 8  # products of fewer rows take another, slower path on a CPU
Pair = tuple[jax.Array, jax.Array]  # keys [S, G, K, positions], values [S, G, positions, K] of one layer
Cache = tuple[Pair, ...]


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Sizes of an embedded engine. All of them are compiled in. Raises ConfigError naming the field.

    Attributes:
      num_slots: sequences that can run, or keep their context, at once.
      max_length: longest context with its output, in tokens.
      prefill_rows: pieces of prompts that one prefill dispatch takes; several may be of the same prompt.
      prefill_chunk: tokens in such a piece.
      decode_steps: most tokens a slot gets in one decode dispatch.
      block: cache positions that attention reads at a time.
      max_stop_ids: most stop ids of one request.
    """

    num_slots: int = 16
    max_length: int = 2048
    prefill_rows: int = 8
    prefill_chunk: int = 32
    decode_steps: int = 8
    block: int = 128
    max_stop_ids: int = 8

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"engine.{field.name}={value!r}: must be a whole number of at least 1")
        if self.prefill_rows * self.prefill_chunk % _MIN_ROWS:
            raise ConfigError(
                f"engine.prefill_rows={self.prefill_rows} x engine.prefill_chunk={self.prefill_chunk}: "
                f"the product must be a multiple of {_MIN_ROWS}"
            )

    @property
    def rows(self) -> int:
        """Slots on the device: `num_slots` rounded up to whole groups of 8."""
        return -(-self.num_slots // _MIN_ROWS) * _MIN_ROWS

    @property
    def spare(self) -> int:
        """Position from which nothing is ever read: rows without work write there."""
        return self.cache_length - max(self.prefill_chunk, self.decode_steps)

    @property
    def cache_length(self) -> int:
        """Positions a slot has on the device: whole blocks, with room behind `max_length` for padded writes."""
        return -(-(self.max_length + max(self.prefill_chunk, self.decode_steps)) // self.block) * self.block


class PrefillRows(NamedTuple):
    """P pieces of prompts. A slot's pieces stand in order; a row without work has count 0 and start `spare`."""

    ids: Int[Array, "p c"]
    slots: Int[Array, "p"]
    starts: Int[Array, "p"]
    counts: Int[Array, "p"]


class DecodeRows(NamedTuple):
    """What every slot is to decode.

    Attributes:
      ids: last token of each context; its key and value are not in the cache yet [S].
      lengths: tokens before it, that is its position [S].
      budgets: most tokens to sample in the turn from here; 0 for a slot without work [S].
      stop_ids: padded with -1 [S, max_stop_ids].
      sampling: sampling parameters.
    """

    ids: Int[Array, "s"]
    lengths: Int[Array, "s"]
    budgets: Int[Array, "s"]
    stop_ids: Int[Array, "s m"]
    sampling: SamplingRows


class Decoded(NamedTuple):
    """Tokens of one decode dispatch; of row s only the first counts[s] mean something."""

    ids: Int[Array, "n s"]
    logprobs: Float[Array, "n s"]
    sampled_logprobs: Float[Array, "n s"]
    counts: Int[Array, "s"]
    stopped: Bool[Array, "s"]


def empty_cache(model: ModelConfig, config: EngineConfig) -> Cache:
    """Returns zeroed keys [S, G, K, cache_length] and values [S, G, cache_length, K] of every layer.

    Keys lie transposed because the product with a few queries is then a plain row-major one: a third less time in the
    attention of a decode step on a CPU.
    """
    return _zeros(model, config.rows, config.cache_length)


def _zeros(model: ModelConfig, rows: int, length: int) -> Cache:
    keys = (rows, model.num_kv_heads, model.head_dim, length)
    values = (rows, model.num_kv_heads, length, model.head_dim)
    return tuple((jnp.zeros(keys, model.dtype), jnp.zeros(values, model.dtype)) for _ in range(model.num_layers))


class _Sums(NamedTuple):
    """Running softmax of a set of queries: largest score, sum of weights [..., T], weighted values [..., T, K]."""

    top: jax.Array
    total: jax.Array
    values: jax.Array


def _start_sums(q: Float[Array, "b g t k"]) -> _Sums:
    top = jnp.full(q.shape[:-1], _FAR_BELOW, jnp.float32)
    return _Sums(top, jnp.zeros_like(top), jnp.zeros(q.shape, jnp.float32))


def _add_block(
    sums: _Sums,
    q: Float[Array, "b g t k"],
    k: Float[Array, "b g k s"],
    v: Float[Array, "b g s k"],
    visible: Bool[Array, "b t s"],
) -> _Sums:
    """Lets the queries see one block more (running softmax: arXiv 1805.02867, algorithm 3)."""
    scores = jnp.einsum("bgtk,bgks->bgts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None], scores, _FAR_BELOW)
    top = jnp.maximum(sums.top, jnp.max(scores, axis=-1))
    shrink = jnp.exp(sums.top - top)
    weights = jnp.exp(scores - top[..., None])
    values = jnp.einsum("bgts,bgsk->bgtk", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return _Sums(top, sums.total * shrink + jnp.sum(weights, axis=-1), sums.values * shrink[..., None] + values)


def _fold_heads(q: Float[Array, "b c h k"], groups: int) -> Float[Array, "b g t k"]:
    """Scales queries and lays the heads that share a key head side by side: t = (H / G) * C."""
    rows, chunk, heads, width = q.shape
    q = q.reshape(rows, chunk, groups, heads // groups, width) * width**-0.5
    return q.transpose(0, 2, 3, 1, 4).reshape(rows, groups, heads // groups * chunk, width)


def _unfold_heads(sums: _Sums, like: Float[Array, "b c h k"]) -> Float[Array, "b c h k"]:
    rows, chunk, heads, width = like.shape
    out = sums.values / sums.total[..., None]
    groups = out.shape[1]
    out = out.reshape(rows, groups, heads // groups, chunk, width).transpose(0, 3, 1, 2, 4)
    return out.reshape(like.shape).astype(like.dtype)


def prefill(model: ModelConfig, config: EngineConfig, params: Params, cache: Cache, rows: PrefillRows) -> Cache:
    """Writes the keys and values of P pieces of prompts.

    Returns:
      The cache. No logits: the first token of a turn is sampled by `decode`, from the prompt's last token.
    """
    offsets = jnp.arange(config.prefill_chunk)
    positions = rows.starts[:, None] + offsets
    ends = jnp.where(rows.counts > 0, rows.starts + rows.counts, 0)
    blocks = -(-jnp.max(ends) // config.block)

    def attend(layer, q, k, v, cache):
        fresh = _as_cache(k, v, cache[layer])

        def write_row(row, pair):
            return _write_row(pair, fresh, row, rows.slots[row], rows.starts[row])

        keys, values = jax.lax.fori_loop(0, config.prefill_rows, write_row, cache[layer])
        folded = _fold_heads(q, k.shape[2])
        shares = folded.shape[2] // config.prefill_chunk

        def read(block: jax.Array) -> Pair:
            start = block * config.block
            pairs = [_read((keys, values), slot, 1, start, config.block) for slot in rows.slots]
            return jnp.concatenate([pair[0] for pair in pairs]), jnp.concatenate([pair[1] for pair in pairs])

        def step(block, sums):
            seen = block * config.block + jnp.arange(config.block)
            visible = jnp.tile(seen[None, None, :] <= positions[:, :, None], (1, shares, 1))
            return _add_block(sums, folded, *read(block), visible)

        sums = jax.lax.fori_loop(0, blocks, step, _start_sums(folded))
        return _unfold_heads(sums, q), (*cache[:layer], (keys, values), *cache[layer + 1 :])

    _, cache = forward_cached(model, params, rows.ids, positions, cache, attend)
    return cache


def decode(
    model: ModelConfig,
    config: EngineConfig,
    steps: int,
    params: Params,
    cache: Cache,
    rows: DecodeRows,
    allowed: Bool[Array, "s v"] | None = None,
) -> tuple[Cache, Decoded]:
    """Samples up to `steps` tokens in every slot that has a budget; a slot stops for itself.

    The cache is only read while the steps run; their own keys and values wait in a small buffer
    and are written behind each context at the end.

    Args:
      model: the model.
      config: sizes.
      steps: most tokens a slot gets.
      params: parameters, unstacked.
      cache: keys and values; donated.
      rows: what to decode.
      allowed: ids that may be sampled [S, V]; needs steps = 1.

    Returns:
      The cache and the tokens.
    """
    active = rows.budgets > 0
    blocks = -(-jnp.max(jnp.where(active, rows.lengths, 0)) // config.block)
    fresh = _zeros(model, config.rows, steps)
    head = head_weights(params)

    def step(carry: _DecodeCarry) -> _DecodeCarry:
        positions = rows.lengths + carry.step
        attend = functools.partial(_attend_decode, config, cache, rows.lengths, blocks, carry.step)
        hidden, fresh = forward_cached(model, params, carry.ids[:, None], positions[:, None], carry.fresh, attend)
        logits = jnp.einsum("sd,vd->sv", hidden[:, 0], head.astype(hidden.dtype), preferred_element_type=jnp.float32)
        ids, logprobs, sampled = sample(logits, positions + 1, rows.sampling, allowed)
        ids = jnp.where(carry.running, ids, carry.ids)
        counts = carry.out.counts + carry.running
        stopped = carry.out.stopped | (carry.running & jnp.any(ids[:, None] == rows.stop_ids, axis=-1))
        out = Decoded(
            carry.out.ids.at[carry.step].set(ids),
            carry.out.logprobs.at[carry.step].set(logprobs),
            carry.out.sampled_logprobs.at[carry.step].set(sampled),
            counts,
            stopped,
        )
        return _DecodeCarry(carry.step + 1, ids, carry.running & ~stopped & (counts < rows.budgets), fresh, out)

    zeros = jnp.zeros((steps, config.rows), jnp.float32)
    out = Decoded(zeros.astype(jnp.int32), zeros, zeros, jnp.zeros(config.rows, jnp.int32), ~active & active)
    carry = jax.lax.while_loop(
        lambda carry: (carry.step < steps) & jnp.any(carry.running),
        step,
        _DecodeCarry(jnp.int32(0), rows.ids, active, fresh, out),
    )
    return _merge(cache, carry.fresh, jnp.where(active, rows.lengths, config.spare)), carry.out


class _DecodeCarry(NamedTuple):
    step: jax.Array
    ids: jax.Array
    running: jax.Array
    fresh: Cache
    out: Decoded


def _attend_decode(
    config: EngineConfig,
    cache: Cache,
    lengths: Int[Array, "s"],
    blocks: Int[Array, ""],
    now: Int[Array, ""],
    layer: int,
    q: Float[Array, "s 1 h k"],
    k: Float[Array, "s 1 g k"],
    v: Float[Array, "s 1 g k"],
    fresh: Cache,
) -> tuple[jax.Array, Cache]:
    """One query a slot over its cached context and over the tokens of this dispatch up to now."""
    new = _write(fresh[layer], _as_cache(k, v, fresh[layer]), 0, now)
    folded = _fold_heads(q, k.shape[2])

    def step(block, sums):
        start = block * config.block
        visible = (start + jnp.arange(config.block))[None, None] < lengths[:, None, None]
        return _add_block(sums, folded, *_read(cache[layer], 0, config.rows, start, config.block), visible)

    sums = jax.lax.fori_loop(0, blocks, step, _start_sums(folded))
    visible = (jnp.arange(new[1].shape[2]) <= now)[None, None]
    return _unfold_heads(_add_block(sums, folded, *new, visible), q), (*fresh[:layer], new, *fresh[layer + 1 :])


def _merge(cache: Cache, fresh: Cache, starts: Int[Array, "s"]) -> Cache:
    """Writes each slot's new keys and values behind its context, in place."""

    def write_row(row, cache):
        return tuple(_write_row(old, new, row, row, starts[row]) for old, new in zip(cache, fresh, strict=True))

    return jax.lax.fori_loop(0, starts.shape[0], write_row, cache)


def _as_cache(k: Float[Array, "b c g k"], v: Float[Array, "b c g k"], like: Pair) -> Pair:
    """Lays new keys and values out as the cache has them."""
    return k.transpose(0, 2, 3, 1).astype(like[0].dtype), v.transpose(0, 2, 1, 3).astype(like[1].dtype)


def _read(pair: Pair, slot: jax.Array | int, slots: int, start: jax.Array, length: int) -> Pair:
    """Reads `length` positions of some neighbouring slots."""
    keys, values = pair
    _, groups, width, _ = keys.shape
    return (
        jax.lax.dynamic_slice(keys, (slot, 0, 0, start), (slots, groups, width, length)),
        jax.lax.dynamic_slice(values, (slot, 0, start, 0), (slots, groups, length, width)),
    )


def _write(pair: Pair, new: Pair, slot: jax.Array | int, start: jax.Array) -> Pair:
    """Puts new keys and values at `start` of the slots from `slot` on."""
    return (
        jax.lax.dynamic_update_slice(pair[0], new[0], (slot, 0, 0, start)),
        jax.lax.dynamic_update_slice(pair[1], new[1], (slot, 0, start, 0)),
    )


def _write_row(pair: Pair, new: Pair, row: jax.Array, slot: jax.Array, start: jax.Array) -> Pair:
    """Puts row `row` of the new keys and values at `start` of one slot."""
    keys, values = (jax.lax.dynamic_slice_in_dim(array, row, 1, axis=0) for array in new)
    return _write(pair, (keys, values), slot, start)


def clear(model: ModelConfig, config: EngineConfig, params: None, cache: Cache, slot: Int[Array, ""]) -> Cache:
    """Zeroes one slot."""
    return jax.tree.map(lambda array: array.at[slot].set(0), cache)


class Programs(NamedTuple):
    """Compiled programs; `decode_among` takes the extra mask and gives one token a dispatch."""

    prefill: Any  # jitted functions
    decode: Any
    decode_among: Any
    clear: Any

    def compilations(self) -> int:
        """Returns how many executables they hold."""
        return sum(program._cache_size() for program in self)


@functools.lru_cache(maxsize=8)
def compile_programs(model: ModelConfig, config: EngineConfig) -> Programs:
    """Jits the programs with the cache donated. Engines of the same sizes share them."""

    def jitted(function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
        return jax.jit(functools.partial(function, model, config, *static), donate_argnums=1)

    return Programs(jitted(prefill), jitted(decode, config.decode_steps), jitted(decode, 1), jitted(clear))
