"""Whether an engine's two programs give a token the same keys and values in every bit.

They compute attention and products in other shapes, which a backend is free to round differently. Where it does not,
a turn's numbers do not depend on which of the two wrote its history (`EngineConfig.keep_sampled`).
"""

from __future__ import annotations

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np

from sage_jax.models import ModelConfig, Params
from sage_jax.rollout import kv_cache
from sage_jax.rollout.engine import GenerateRequest, SamplingParams
from sage_jax.rollout.kv_cache import Cache
from sage_jax.rollout.programs import EngineConfig, Programs
from sage_jax.rollout.slots import Slot
from sage_jax.rollout.turns import Run, SharedPrefix, copy_batch, decode_batch, prefill_batch

_OWN, _NEW = 5, 3  # tokens that a context has for itself, and tokens sampled behind it


def rounds_alike(
    model: ModelConfig, config: EngineConfig, programs: Programs, params: Params, cache: Cache
) -> tuple[bool, Cache]:
    """Decodes a few tokens in all slots, prefills the same tokens, and compares what the two have written.

    Args:
      model: the model.
      config: sizes of the programs.
      programs: to be compared.
      params: parameters, unstacked.
      cache: keys and values; donated, and overwritten.

    Returns:
      Whether all bits are equal; False also where contexts are too short to tell. And the cache.
    """
    shared = min(config.block * 3 // 2, config.max_length - _OWN - _NEW)  # attention over more than one block
    if shared < 1:
        return False, cache
    rng = np.random.default_rng(0)
    beginning = rng.integers(model.vocab_size, size=shared).tolist()

    def seat(index: int, ids: list[int]) -> Slot[Run]:
        request = GenerateRequest("", "", tuple(ids), SamplingParams(_NEW, seed=index))
        return Slot(index, run=Run(request, _NEW, concurrent.futures.Future(), None))

    def prefill(cache: Cache, slots: list[Slot[Run]], start: int, end: int) -> Cache:
        chunk = config.prefill_chunk
        pieces = [(slot, place, min(chunk, end - place)) for slot in slots for place in range(start, end, chunk)]
        for first in range(0, len(pieces), config.pieces):
            rows = prefill_batch(config, pieces[first : first + config.pieces])
            cache = programs.prefill(params, cache, rows)
        return cache

    @jax.jit
    def written(cache: Cache) -> Cache:
        every = jnp.arange(config.rows)
        return tuple(kv_cache.read(pair, every, jnp.int32(shared + _OWN - 1), _NEW) for pair in cache)

    slots = [
        seat(index, beginning + rng.integers(model.vocab_size, size=_OWN).tolist()) for index in range(config.rows)
    ]
    first, *others = slots
    cache = prefill(cache, [first], 0, shared)
    copies = [(slot, SharedPrefix(first, None, shared)) for slot in others]
    cache = programs.copy(None, cache, copy_batch(config, copies))
    cache = prefill(cache, slots, shared, shared + _OWN - 1)
    cache, out = programs.decode(params, cache, decode_batch(config, model.vocab_size, slots))
    decoded, sampled = jax.device_get((written(cache), out.ids))
    again = [seat(slot.index, [*slot.turn.request.ids, *sampled[: _NEW - 1, slot.index].tolist()]) for slot in slots]
    cache = prefill(cache, again, shared + _OWN - 1, shared + _OWN - 1 + _NEW)
    prefilled = jax.device_get(written(cache))
    same = jax.tree.map(lambda one, other: one.tobytes() == other.tobytes(), decoded, prefilled)
    return all(jax.tree.leaves(same)), cache
