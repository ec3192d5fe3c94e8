import asyncio
import dataclasses

import jax
import numpy as np
import pytest

from sage_jax.models import ModelConfig, init_params
from sage_jax.rollout import GenerateRequest, SamplingParams, embedded
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.programs import Decoded, EngineConfig, Programs, empty_cache
from sage_jax.rollout.rounding import rounds_alike

MODEL = ModelConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    tie_embeddings=True,
)
CONFIG = EngineConfig(
    num_slots=8, max_length=128, block=32, prefill_chunk=8, prefill_rows=8, keep_sampled=True, joined_heads=2
)


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda leaf: leaf * (5 if leaf.ndim > 1 else 1), init_params(MODEL, jax.random.key(0)))


def compare(error=0.0, config=CONFIG):
    """Compares programs that write token ids as keys and values, of which `prefill` errs in the last slot."""

    def write(cache, slot, position, number):
        for keys, values in cache:
            keys[slot, :, :, position] = values[slot, :, position] = number

    def prefill(params, cache, rows):
        for ids, slot, start, count in zip(*rows, strict=True):
            for place in range(count):
                write(cache, slot, start + place, ids[place] + error * (slot == config.rows - 1))
        return cache

    def decode(params, cache, rows):
        out = (rows.ids + 1 + np.arange(config.decode_steps)[:, None]) % MODEL.vocab_size
        for slot, token, length, new in zip(rows.slots, rows.ids, rows.lengths, out.T, strict=True):
            for place, number in enumerate((token, *new[:-1])):
                write(cache, slot, length + place, number)
        return cache, Decoded(out, None, None, None, None)

    cache = jax.tree.map(np.array, empty_cache(MODEL, config))
    programs = Programs(prefill, decode, None, lambda params, cache, rows: cache, None)
    return rounds_alike(MODEL, config, programs, {}, cache)[0]


def test_programs_that_write_the_same_are_alike():
    assert compare()


def test_a_difference_of_one_bit_in_one_slot_is_found():
    assert not compare(error=2**-14)  # of ids up to 512


def test_contexts_too_short_to_compare_are_not_alike():
    assert not compare(config=dataclasses.replace(CONFIG, max_length=8))


def second_turn(params, config, kept):
    """The second turn of a session, and the engine's settings and counters; `kept` leaves it its slot in between."""
    engine = EmbeddedEngine(MODEL, params, config)
    first = tuple(range(3, 50))

    async def play():
        turn = await engine.generate(GenerateRequest("a", "s", first, SamplingParams(10, seed=1)))
        if not kept:
            await engine.end_session("s")
        ids = first + turn.ids + (7, 8, 9)
        return await engine.generate(GenerateRequest("b", "s", ids, SamplingParams(10, seed=2)))

    try:
        return asyncio.run(play()), engine.config, engine.stats()
    finally:
        engine.close()


def test_a_turn_is_the_same_in_every_bit_whether_sampled_tokens_were_kept(params):
    kept, config, stats = second_turn(params, CONFIG, kept=True)
    anew, _, _ = second_turn(params, CONFIG, kept=False)
    assert (kept.ids, kept.logprobs) == (anew.ids, anew.logprobs)
    assert anew.cached_tokens == 0
    assert kept.cached_tokens == (56 if config.keep_sampled else 46)
    assert stats["requests"] == 2


def test_where_the_programs_differ_sampled_tokens_are_prefilled_again(params, monkeypatch):
    monkeypatch.setattr(embedded, "rounds_alike", lambda model, config, programs, params, cache: (False, cache))
    again, config, stats = second_turn(params, CONFIG, kept=True)
    assert not config.keep_sampled
    assert again.cached_tokens == 46
    plain, _, _ = second_turn(params, dataclasses.replace(CONFIG, keep_sampled=False), kept=True)
    assert (again.ids, again.logprobs) == (plain.ids, plain.logprobs)
    assert stats["prefilled_tokens"] == 46 + 13
