"""The device programs of the embedded engine: prefill pieces of prompts, decode a few tokens of the running slots.

Both work on groups of rows of one static shape and do as many groups as there is work for, so that few rows cost
little, nothing is compiled twice, and nothing a row computes depends on another row:

- The rows of a group never mix. Attention walks the cache in blocks, as far as the group's longest context needs;
  blocks behind a slot's own end change no bit (kv_cache.py).
- Keys and values of the prompt, all but its last token, come from `prefill`; those of the last prompt token and of
  the sampled tokens come from `decode`. Products of few rows round differently from those of many. So the next turn
  prefills the latter again, or, with `keep_sampled`, `decode` computes products of many rows too (rounding.py): a
  turn's numbers are the same whether its history was still cached or not.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sage_jax.errors import ConfigError
from sage_jax.models import ModelConfig, Params, abstract_params, forward_cached, head_weights
from sage_jax.rollout import kv_cache
from sage_jax.rollout.kv_cache import Cache
from sage_jax.rollout.sampling import SamplingRows, sample

_MIN_ROWS = 8  # on a CPU products of 2 to 7 rows cost as much, and in bfloat16 one row costs more
_MAX_ROWS = 32  # more read the weights more rarely still, but waste more while few slots run
_MANY_ROWS = 64  # from some 40 to 56 rows on, products of XLA:CPU round like those of any larger number
_WIDE = 128  # numbers in a row that XLA:CPU copies fast
KV_DTYPES = ("", "bfloat16")
_CACHES = 16 << 20  # bytes of weights that a core's caches are taken to hold from one group to the next


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Sizes of an embedded engine. All of them are compiled in. Raises ConfigError naming the field.

    Attributes:
      num_slots: sequences that can run, or keep their context, at once.
      max_length: longest context with its output, in tokens.
      prefill_chunk: tokens in one piece of a prompt.
      prefill_rows: pieces computed side by side; several may be of the same prompt.
      prefill_groups: most times a prefill dispatch does that.
      decode_rows: slots that decode side by side: 1, or a multiple of 8. Few of them waste little where slots stop at
        different times or hold contexts of different lengths; many of them read the weights less often.
      decode_steps: most tokens a slot gets in one decode dispatch.
      block: cache positions that attention reads at a time.
      share_from: fewest tokens worth copying from a slot whose context begins alike; above max_length turns it off.
      keep_sampled: let the next turn use the keys and values of sampled tokens as `decode` wrote them, instead of
        prefilling those tokens again. Rows of zeros then fill the products of `decode`, so that they round like those
        of `prefill`. An engine on whose devices the two still differ in a bit turns it off when it starts.
      max_stop_ids: most stop ids of one request.
      kv_dtype: dtype in which keys and values are kept; "" is the model's. "bfloat16" halves the memory of a float32
        model and the time of reading it, and rounds what attention sees to 8 bits.
      joined_heads: key heads whose values lie side by side in the cache; see `kv_cache.empty_cache`.
    """

    num_slots: int = 16
    max_length: int = 2048
    prefill_chunk: int = 16
    prefill_rows: int = 4
    prefill_groups: int = 8
    decode_rows: int = 8
    decode_steps: int = 8
    block: int = 128
    share_from: int = 32
    keep_sampled: bool = False
    max_stop_ids: int = 8
    kv_dtype: str = ""
    joined_heads: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "keep_sampled":
                if not isinstance(value, bool):
                    raise ConfigError(f"engine.keep_sampled={value!r}: must be True or False")
            elif field.name == "kv_dtype":
                if value not in KV_DTYPES:
                    raise ConfigError(f"engine.kv_dtype={value!r}: must be one of {KV_DTYPES}")
            elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"engine.{field.name}={value!r}: must be a whole number of at least 1")
        if self.prefill_rows * self.prefill_chunk % _MIN_ROWS:
            raise ConfigError(
                f"engine.prefill_rows={self.prefill_rows} x engine.prefill_chunk={self.prefill_chunk}: "
                f"the product must be a multiple of {_MIN_ROWS}"
            )
        if self.decode_rows % _MIN_ROWS and self.decode_rows != 1:
            raise ConfigError(f"engine.decode_rows={self.decode_rows}: must be 1 or a multiple of {_MIN_ROWS}")

    @classmethod
    def for_model(cls, model: ModelConfig, num_slots: int, max_length: int, **sizes: Any) -> EngineConfig:
        """Returns sizes that suit a model, from measurements on a CPU.

        Small weights stay in the caches: groups of 8 rows then waste least, and the defaults are kept. Larger ones are
        read anew by every group: as many slots as there are decode side by side, up to 32, and the pieces of prompts
        are more and shorter, since a turn's last piece is half empty on average. A single slot in float32 decodes in a
        row of its own: products of one row take less than half of the time of products of eight. On a CPU 32 slots
        keep sampled tokens while products of 64 rows take hardly longer, which larger weights end.

        Args:
          model: the model.
          num_slots, max_length: see the class.
          sizes: other fields, which go before what would be chosen.
        """
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(model)))
        weights = count * jnp.dtype(model.dtype).itemsize
        if weights > _CACHES:
            rows = min(_MAX_ROWS, -(-num_slots // _MIN_ROWS) * _MIN_ROWS)
            alone = num_slots == 1 and jnp.dtype(model.dtype) == jnp.float32
            chosen = {"decode_rows": 1 if alone else rows, "prefill_chunk": 8, "prefill_rows": rows}
            if jax.default_backend() == "cpu":
                joined, rest = divmod(_WIDE, model.head_dim)
                chosen["joined_heads"] = 1 if rest or not joined or model.num_kv_heads % joined else joined
                chosen["keep_sampled"] = rows == _MAX_ROWS and weights <= 4 * _CACHES
            sizes = chosen | sizes
        return cls(num_slots=num_slots, max_length=max_length, **sizes)

    @property
    def pieces(self) -> int:
        """Pieces of prompts that one prefill dispatch takes."""
        return self.prefill_groups * self.prefill_rows

    @property
    def rows(self) -> int:
        """Rows of a decode dispatch, and slots on the device: `num_slots` rounded up to whole groups."""
        return -(-self.num_slots // self.decode_rows) * self.decode_rows

    @property
    def scratch(self) -> int:
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
      starts: position of its first token; `scratch` in a row without work.
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


class CopyRows(NamedTuple):
    """Beginnings of contexts to copy from slot to slot; rows with a count come first.

    Attributes:
      sources, targets: slots [S].
      counts: tokens; 0 in a row without work [S].
    """

    sources: Int[Array, "s"]
    targets: Int[Array, "s"]
    counts: Int[Array, "s"]


class Decoded(NamedTuple):
    """Tokens of one decode dispatch; of row s only the first counts[s] mean something."""

    ids: Int[Array, "n s"]
    logprobs: Float[Array, "n s"]
    sampled_logprobs: Float[Array, "n s"]
    counts: Int[Array, "s"]
    stopped: Bool[Array, "s"]


def empty_cache(model: ModelConfig, config: EngineConfig) -> Cache:
    """Returns the zeroed cache of all slots."""
    return kv_cache.empty_cache(model, config.rows, config.cache_length, config.kv_dtype, config.joined_heads)


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
    attend = functools.partial(_attend, config, rows.slots, positions, rows.counts > 0)
    _, cache = forward_cached(model, params, rows.ids, positions, cache, attend)
    return cache


def _attend(
    config: EngineConfig,
    slots: Int[Array, "b"],
    positions: Int[Array, "b c"],
    active: Bool[Array, "b"],
    layer: int,
    q: Float[Array, "b c h k"],
    k: Float[Array, "b c g k"],
    v: Float[Array, "b c g k"],
    cache: Cache,
) -> tuple[jax.Array, Cache]:
    """Writes new tokens behind their contexts and lets them see those and themselves."""
    pair = kv_cache.write_rows(cache[layer], kv_cache.as_cache(k, v, cache[layer]), slots, positions[:, 0])
    folded = kv_cache.fold_heads(q, k.shape[2])
    sees = jnp.where(active[:, None], positions, 0)  # a row without work is not to prolong the walk
    sees = jnp.tile(sees, (1, folded.shape[2] // positions.shape[1]))
    sums = kv_cache.walk(pair, slots, folded, sees, config.block)
    return kv_cache.unfold_heads(sums, q), (*cache[:layer], pair, *cache[layer + 1 :])


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
    cache: Cache
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
    """Decodes one group until all of its rows have stopped."""
    size, active = config.decode_rows, rows.budgets > 0
    starts = jnp.where(active, rows.lengths, config.scratch)
    head = head_weights(params)
    spare = max(0, _MANY_ROWS - size) if config.keep_sampled else 0

    def fill(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, spare), *((0, 0),) * (x.ndim - 1)))

    def step(carry: _DecodeCarry) -> _DecodeCarry:
        positions = starts + carry.step
        attend = functools.partial(_attend, config, rows.slots, positions[:, None], active)

        def attend_rows(layer, q, k, v, cache):
            out, cache = attend(layer, q[:size], k[:size], v[:size], cache)
            return fill(out), cache

        ids, places = fill(carry.ids)[:, None], fill(positions)[:, None]
        hidden, cache = forward_cached(model, params, ids, places, carry.cache, attend_rows)
        hidden = hidden[:size]
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
        return _DecodeCarry(carry.step + 1, ids, carry.running & ~stopped & (counts < rows.budgets), cache, out)

    zeros = jnp.zeros((steps, size), jnp.float32)
    out = Decoded(zeros.astype(jnp.int32), zeros, zeros, jnp.zeros(size, jnp.int32), ~active & active)
    carry = jax.lax.while_loop(
        lambda carry: (carry.step < steps) & jnp.any(carry.running),
        step,
        _DecodeCarry(jnp.int32(0), rows.ids, active, cache, out),
    )
    return carry.cache, carry.out


def copy(model: ModelConfig, config: EngineConfig, params: None, cache: Cache, rows: CopyRows) -> Cache:
    """Copies beginnings of contexts, in whole blocks: what lies behind a beginning is written before it is read."""

    def copy_row(row: jax.Array, cache: Cache) -> Cache:
        source, target = rows.sources[row][None], rows.targets[row][None]

        def copy_block(index: jax.Array, cache: Cache) -> Cache:
            start = index * config.block
            return tuple(
                kv_cache.write_rows(pair, kv_cache.read(pair, source, start, config.block), target, start[None])
                for pair in cache
            )

        return jax.lax.fori_loop(0, -(-rows.counts[row] // config.block), copy_block, cache)

    return jax.lax.fori_loop(0, jnp.sum(rows.counts > 0), copy_row, cache)


def clear(model: ModelConfig, config: EngineConfig, params: None, cache: Cache, slot: Int[Array, ""]) -> Cache:
    """Zeroes one slot."""
    return jax.tree.map(lambda array: array.at[slot].set(0), cache)


class Programs(NamedTuple):
    """Compiled programs; `decode_choices` takes the extra mask and gives one token a dispatch."""

    prefill: Any  # jitted functions
    decode: Any
    decode_choices: Any
    copy: Any
    clear: Any

    def compilations(self) -> int:
        """Returns how many executables they hold."""
        return sum(program._cache_size() for program in self)


@functools.lru_cache(maxsize=8)
def compile_programs(model: ModelConfig, config: EngineConfig) -> Programs:
    """Jits the programs with the cache donated. Engines of the same sizes share them."""

    def jitted(function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
        return jax.jit(functools.partial(function, model, config, *static), donate_argnums=1)

    return Programs(
        jitted(prefill), jitted(decode, config.decode_steps), jitted(decode, 1), jitted(copy), jitted(clear)
    )
