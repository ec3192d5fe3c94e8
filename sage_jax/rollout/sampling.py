"""Drawing one token a row, and telling its log-probability under the whole and under the truncated distribution.

The draw of a row depends on its own logits, seed and position alone: not on its row number, not on its neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


class SamplingRows(NamedTuple):
    """Sampling parameters of S rows.

    Attributes:
      seeds: the two 32-bit words of each row's seed, high word first [S, 2].
      temperature: [S]; 0 is greedy.
      top_p: [S]; 1 is off.
      top_k: [S]; 0 is off.
    """

    seeds: UInt32[Array, "s 2"]
    temperature: Float[Array, "s"]
    top_p: Float[Array, "s"]
    top_k: Int[Array, "s"]


def sample(
    logits: Float[Array, "s v"],
    positions: Int[Array, "s"],
    rows: SamplingRows,
    allowed: Bool[Array, "s v"] | None = None,
) -> tuple[Int[Array, "s"], Float[Array, "s"], Float[Array, "s"]]:
    """Draws one token a row by the Gumbel trick.

    Args:
      logits: [S, V] float32.
      positions: position in the context of the token to draw [S]; with the seed it makes the key.
      rows: sampling parameters.
      allowed: ids that may be drawn at all [S, V], at least one a row; top-k and top-p then act among them.

    Returns:
      ids [S]; their log-probabilities under softmax(logits / T) [S]; and under the distribution that was drawn from
      [S]. At T = 0 the first is softmax(logits)'s and the second 0.
    """
    greedy = rows.temperature == 0
    scaled = logits / jnp.where(greedy, 1.0, rows.temperature)[:, None]
    eligible = scaled if allowed is None else jnp.where(allowed, scaled, -jnp.inf)
    kept = jnp.where(eligible >= truncation_threshold(eligible, rows)[:, None], eligible, -jnp.inf)
    noise = jax.vmap(lambda seed, position: _gumbel(seed, position, logits.shape[-1]))(rows.seeds, positions)
    ids = _first_largest(jnp.where(greedy[:, None], eligible, kept + noise))
    chosen = jnp.take_along_axis(scaled, ids[:, None], axis=-1)[:, 0]
    logprobs = chosen - jax.nn.logsumexp(scaled, axis=-1)
    sampled = jnp.where(greedy, 0.0, chosen - jax.nn.logsumexp(kept, axis=-1))
    return ids, logprobs, sampled


def truncation_threshold(logits: Float[Array, "s v"], rows: SamplingRows) -> Float[Array, "s"]:
    """Returns the least logit that top-k and top-p keep, -inf where both are off.

    Sorting V numbers a row is the slow part of truncated sampling on a CPU. Both cuts are instead found by bisection
    over the 2**32 ordered float32 values: 32 counts and sums, and only when some row truncates.
    """
    return jax.lax.cond(
        jnp.any((rows.top_p < 1) | (rows.top_k > 0)),
        _bisect_threshold,
        lambda logits, rows: jnp.full(logits.shape[0], -jnp.inf, jnp.float32),
        logits,
        rows,
    )


def _bisect_threshold(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    ordered = _ordered_bits(logits)
    probabilities = jax.nn.softmax(logits, axis=-1)
    count_wanted = jnp.where(rows.top_k > 0, jnp.minimum(rows.top_k, logits.shape[-1]), 0)
    # A top_p that float32 or the device takes for 0 would ask for no mass at all, and keep no token.
    least = jnp.finfo(jnp.float32).tiny
    mass_wanted = jnp.where(rows.top_p < 1, jnp.maximum(rows.top_p, least), 0.0)

    # Builds, from the highest bit down, the largest threshold that still keeps enough tokens and enough mass.
    def add_bit(index, bounds):
        bit = jnp.uint32(1) << (31 - index).astype(jnp.uint32)
        by_count, by_mass = (bound | bit for bound in bounds)
        enough_tokens = jnp.sum(ordered >= by_count[:, None], axis=-1) >= count_wanted
        enough_mass = jnp.sum(probabilities * (ordered >= by_mass[:, None]), axis=-1) >= mass_wanted
        return jnp.where(enough_tokens, by_count, bounds[0]), jnp.where(enough_mass, by_mass, bounds[1])

    zeros = jnp.zeros(logits.shape[0], jnp.uint32)
    by_count, by_mass = jax.lax.fori_loop(0, 32, add_bit, (zeros, zeros))
    by_count = jnp.where(rows.top_k > 0, by_count, 0)
    # Rounding can leave the whole mass below a top_p close to 1: then nothing is cut.
    by_mass = jnp.where(rows.top_p < 1, by_mass, 0)
    bound = jnp.maximum(by_count, by_mass)
    return jnp.min(jnp.where(ordered >= bound[:, None], logits, jnp.inf), axis=-1)


def _first_largest(x: Float[Array, "s v"]) -> Int[Array, "s"]:
    """Returns argmax over the last axis, as two plain reductions: six times faster than jnp.argmax on a CPU.

    A row with a NaN gives the last id; its log-probability is NaN then, and the engine refuses it.
    """
    size = x.shape[-1]
    largest = jnp.max(x, axis=-1, keepdims=True)
    return jnp.minimum(jnp.min(jnp.where(x == largest, jnp.arange(size), size), axis=-1), size - 1).astype(jnp.int32)


def _ordered_bits(x: jax.Array) -> jax.Array:
    """Maps float32 to uint32 with the same order (-inf lowest)."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _gumbel(seed: UInt32[Array, "2"], position: Int[Array, ""], size: int) -> Float[Array, "v"]:
    """Returns `jax.random.gumbel(jax.random.fold_in(key of the seed, position), (size,))`, in every bit."""
    zero = jnp.uint32(0)
    key = _threefry(seed[0], seed[1], zero, position.astype(jnp.uint32))
    high, low = _threefry(*key, zero, jnp.arange(size, dtype=jnp.uint32))
    one_to_two = jax.lax.bitcast_convert_type((high ^ low) >> 9 | jnp.uint32(0x3F800000), jnp.float32)
    uniform = jnp.maximum(one_to_two - 1, jnp.finfo(jnp.float32).tiny)
    return -jnp.log(-jnp.log(uniform))


def _threefry(key0: jax.Array, key1: jax.Array, x0: jax.Array, x1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al., SC 2011), as jax.random has it.

    jax's own is a loop on a CPU and passes over all numbers a dozen times; this is one pass, four times faster.
    """
    keys = key0, key1, key0 ^ key1 ^ jnp.uint32(0x1BD11BDA)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = x0 + x1
            x1 = x0 ^ (x1 << turn | x1 >> (32 - turn))
        x0, x1 = x0 + keys[(group + 1) % 3], x1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1
