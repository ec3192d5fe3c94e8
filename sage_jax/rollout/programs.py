"""The device programs of the embedded engine: prefill pieces of prompts, decode a few tokens of the running slots.

Both work on groups of rows of one static shape and do as many groups as there is work for, so that few rows cost
little, nothing is compiled twice, and nothing a row computes depends on another row:

- The rows of a group never mix. Attention walks the cache in blocks, as far as the group's longest context needs;
  blocks behind a slot's own end change no bit (kv_cache.py).
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
from sage_jax.rollout import kv_cache
from sage_jax.rollout.kv_cache import Cache
from sage_jax.rollout.sampling import SamplingRows, sample

_MIN_ROWS = 8  # products of fewer rows take another, slower path on a CPU


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Sizes of an embedded engine. All of them are compiled in. Raises ConfigError naming the field.

    Attributes:
      num_slots: sequences that can run, or keep their context, at once.
      max_length: longest context with its output, in tokens.
      prefill_chunk: tokens in one piece of a prompt.
      prefill_rows: pieces computed side by side; several may be of the same prompt.
      prefill_groups: most times a prefill dispatch does that.
      decode_rows: slots that decode side by side. Few of them waste little where slots stop at different times or
        hold contexts of different lengths; many of them read the weights less often.
      decode_steps: most tokens a slot gets in one decode dispatch.
      block: cache positions that attention reads at a time.
      max_stop_ids: most stop ids of one request.
    """

    num_slots: int = 16
    max_length: int = 2048
    prefill_chunk: int = 16
    prefill_rows: int = 4
    prefill_groups: int = 8
    decode_rows: int = 8
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
        if self.decode_rows % _MIN_ROWS:
            raise ConfigError(f"engine.decode_rows={self.decode_rows}: must be a multiple of {_MIN_ROWS}")

    @property
    def pieces(self) -> int:
        """Pieces of prompts that one prefill dispatch takes."""
        return self.prefill_groups * self.prefill_rows

    @property
    def rows(self) -> int:
        """Rows of a decode dispatch, and slots on the device: `num_slots` rounded up to whole groups."""
        return -(-self.num_slots // self.decode_rows) * self.decode_rows

    @property
    def spare(self) -> int:
        """Position from which nothing is ever read: rows without work write there."""
        return self.cache_length - max(self.prefill_chunk, self.decode_steps)

    @property
    def cache_length(self) -> int:
        """Positions a slot has on the device: whole blocks, with room behind `max_length` for padded writes."""
        return -(-(self.max_length + max(self.prefill_chunk, self.decode_steps)) // self.block) * self.block


class PrefillRows(NamedTuple):
    """Pieces of prompts [P]; rows with a count come first, a slot's pieces in order.

    Attributes:
      ids: tokens, padded behind `counts`.
      slots: where each piece belongs.
      starts: position of its first token; `spare` in a row without work.
      counts: tokens in it; 0 in a row without work.
    """

    ids: Int[Array, "p c"]
    slots: Int[Array, "p"]
    starts: Int[Array, "p"]
    counts: Int[Array, "p"]


class DecodeRows(NamedTuple):
    """What is to be decoded; rows with a budget come first.

    Attributes:
      slots: where each row's context lies [S].
      ids: last token of each context; its key and value are not in the cache yet [S].
      lengths: tokens before it, that is its position [S].
      budgets: most tokens to sample in the turn from here; 0 for a row without work [S].
      stop_ids: padded with -1 [S, max_stop_ids].
      sampling: sampling parameters.
    """

    slots: Int[Array, "s"]
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
    """Returns the zeroed cache of all slots."""
    return kv_cache.empty_cache(model, config.rows, config.cache_length)


def _group(rows: Any, index: jax.Array, size: int) -> Any:
    """Cuts group `index` out of arrays [rows, ...]."""
    return jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, index * size, size), rows)


def _groups(work: Int[Array, "r"], size: int) -> jax.Array:
    """Returns how many groups have a row with work, when those rows come first."""
    return -(-jnp.sum(work > 0) // size)


def prefill(model: ModelConfig, config: EngineConfig, params: Params, cache: Cache, rows: PrefillRows) -> Cache:
    """Writes the keys and values of pieces of prompts.

    Returns:
      The cache. No logits: the first token of a turn is sampled by `decode`, from the prompt's last token.
    """

    def body(index: jax.Array, cache: Cache) -> Cache:
        return _prefill_group(model, config, params, cache, _group(rows, index, config.prefill_rows))

    return jax.lax.fori_loop(0, _groups(rows.counts, config.prefill_rows), body, cache)


def _prefill_group(model: ModelConfig, config: EngineConfig, params: Params, cache: Cache, rows: PrefillRows) -> Cache:
    positions = rows.starts[:, None] + jnp.arange(config.prefill_chunk)
    ends = jnp.where(rows.counts > 0, rows.starts + rows.counts, 0)
    blocks = -(-jnp.max(ends) // config.block)

    def attend(layer, q, k, v, cache):
        pair = kv_cache.write_rows(cache[layer], kv_cache.as_cache(k, v, cache[layer]), rows.slots, rows.starts)
        folded = kv_cache.fold_heads(q, k.shape[2])
        shares = folded.shape[2] // config.prefill_chunk

        def visible(seen):
            return jnp.tile(seen[None, None, :] <= positions[:, :, None], (1, shares, 1))

        sums = kv_cache.walk(pair, rows.slots, folded, visible, blocks, config.block)
        return kv_cache.unfold_heads(sums, q), (*cache[:layer], pair, *cache[layer + 1 :])

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
    """Samples up to `steps` tokens in every row that has a budget; a row stops for itself.

    Args:
      model: the model.
      config: sizes.
      steps: most tokens a row gets.
      params: parameters, unstacked.
      cache: keys and values; donated.
      rows: what to decode.
      allowed: ids that may be sampled [S, V]; needs steps = 1.

    Returns:
      The cache and the tokens.
    """
    size = config.decode_rows
    zeros, none = jnp.zeros((steps, config.rows), jnp.float32), jnp.zeros(config.rows, jnp.int32)
    empty = Decoded(zeros.astype(jnp.int32), zeros, zeros, none, none > 0)

    def body(index: jax.Array, carry: tuple[Cache, Decoded]) -> tuple[Cache, Decoded]:
        cache, out = carry
        part, part_allowed = _group((rows, allowed), index, size)
        cache, decoded = _decode_group(model, config, steps, params, cache, part, part_allowed)

        def place(whole, new):
            return jax.lax.dynamic_update_slice_in_dim(whole, new, index * size, axis=new.ndim - 1)

        return cache, jax.tree.map(place, out, decoded)

    return jax.lax.fori_loop(0, _groups(rows.budgets, size), body, (cache, empty))


class _DecodeCarry(NamedTuple):
    step: jax.Array
    ids: jax.Array
    running: jax.Array
    fresh: Cache
    out: Decoded


def _decode_group(
    model: ModelConfig,
    config: EngineConfig,
    steps: int,
    params: Params,
    cache: Cache,
    rows: DecodeRows,
    allowed: Bool[Array, "s v"] | None,
) -> tuple[Cache, Decoded]:
    """Decodes one group until all of its rows have stopped.

    The cache is only read while the steps run; their own keys and values wait in a small buffer and are written
    behind each context at the end.
    """
    size, active = config.decode_rows, rows.budgets > 0
    blocks = -(-jnp.max(jnp.where(active, rows.lengths, 0)) // config.block)
    fresh = kv_cache.empty_cache(model, size, steps)
    head = head_weights(params)

    def step(carry: _DecodeCarry) -> _DecodeCarry:
        positions = rows.lengths + carry.step
        attend = functools.partial(_attend_decode, config, cache, rows, blocks, carry.step)
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

    zeros = jnp.zeros((steps, size), jnp.float32)
    out = Decoded(zeros.astype(jnp.int32), zeros, zeros, jnp.zeros(size, jnp.int32), ~active & active)
    carry = jax.lax.while_loop(
        lambda carry: (carry.step < steps) & jnp.any(carry.running),
        step,
        _DecodeCarry(jnp.int32(0), rows.ids, active, fresh, out),
    )
    starts = jnp.where(active, rows.lengths, config.spare)
    pairs = zip(cache, carry.fresh, strict=True)
    return tuple(kv_cache.write_rows(pair, new, rows.slots, starts) for pair, new in pairs), carry.out


def _attend_decode(
    config: EngineConfig,
    cache: Cache,
    rows: DecodeRows,
    blocks: Int[Array, ""],
    now: Int[Array, ""],
    layer: int,
    q: Float[Array, "s 1 h k"],
    k: Float[Array, "s 1 g k"],
    v: Float[Array, "s 1 g k"],
    fresh: Cache,
) -> tuple[jax.Array, Cache]:
    """One query a row over its cached context and over the tokens of this dispatch up to now."""
    new = kv_cache.write(fresh[layer], kv_cache.as_cache(k, v, fresh[layer]), 0, now)
    folded = kv_cache.fold_heads(q, k.shape[2])

    def visible(seen):
        return seen[None, None, :] < rows.lengths[:, None, None]

    sums = kv_cache.walk(cache[layer], rows.slots, folded, visible, blocks, config.block)
    sums = kv_cache.add_block(sums, folded, *new, (jnp.arange(new[1].shape[2]) <= now)[None, None])
    return kv_cache.unfold_heads(sums, q), (*fresh[:layer], new, *fresh[layer + 1 :])


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
