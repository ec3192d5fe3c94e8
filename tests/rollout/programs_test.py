import asyncio

import jax
import numpy as np
import pytest

from sage_jax.errors import ConfigError
from sage_jax.models import ModelConfig, init_params
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.programs import EngineConfig, empty_cache

# The size of the local scale's model: products large enough for every blocked and threaded path of the backend.
MODEL = ModelConfig(
    vocab_size=2048,
    hidden_size=128,
    intermediate_size=384,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    tie_embeddings=True,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_slots", 0),
        ("max_length", -1),
        ("block", 1.5),
        ("decode_steps", True),
        ("prefill_chunk", 9),
        ("decode_rows", 12),
        ("keep_sampled", 1),
        ("kv_dtype", "float16"),
        ("joined_heads", 0),
    ],
)
def test_engine_config_names_the_field_that_is_wrong(field, value):
    with pytest.raises(ConfigError, match=f"engine.{field}"):
        EngineConfig(**{"prefill_rows": 1, "prefill_chunk": 8} | {field: value})


LARGER = ModelConfig(**{**vars(MODEL), "hidden_size": 512, "intermediate_size": 2048, "vocab_size": 8192})  # 11M


@pytest.mark.parametrize(
    ("model", "slots", "expected"),
    [
        (MODEL, 64, (8, 4, 16)),
        (LARGER, 1, (1, 8, 8)),
        (LARGER, 2, (8, 8, 8)),
        (LARGER, 17, (24, 24, 8)),
        (LARGER, 64, (32, 32, 8)),
    ],
)
def test_groups_follow_the_weights_and_the_slots(model, slots, expected):
    config = EngineConfig.for_model(model, slots, 100)
    assert (config.decode_rows, config.prefill_rows, config.prefill_chunk) == expected
    assert (config.num_slots, config.max_length) == (slots, 100)


def test_groups_follow_the_bytes_of_the_weights_and_not_their_number():
    model = ModelConfig(**{**vars(MODEL), "intermediate_size": 6144, "dtype": "bfloat16"})
    assert EngineConfig.for_model(model, 64, 100).decode_rows == 8
    assert EngineConfig.for_model(ModelConfig(**{**vars(model), "dtype": "float32"}), 64, 100).decode_rows == 32


def test_one_row_in_bfloat16_is_computed_as_eight():
    assert EngineConfig.for_model(ModelConfig(**{**vars(LARGER), "dtype": "bfloat16"}), 1, 100).decode_rows == 8


@pytest.mark.parametrize(
    ("changes", "slots", "expected"),
    [
        ({}, 64, (False, 1)),  # the products of zeros would cost too much
        ({"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64}, 64, (True, 2)),
        ({"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64}, 24, (False, 2)),
        ({"num_kv_heads": 4}, 64, (False, 4)),
        ({"head_dim": 128}, 64, (False, 1)),
        ({"head_dim": 256}, 64, (False, 1)),
        ({"head_dim": 48}, 64, (False, 1)),
    ],
)
def test_sampled_tokens_are_kept_and_heads_joined_where_a_cpu_gains(changes, slots, expected):
    config = EngineConfig.for_model(ModelConfig(**{**vars(LARGER), "num_layers": 6, **changes}), slots, 100)
    assert (config.keep_sampled, config.joined_heads) == expected


def test_given_sizes_go_first():
    config = EngineConfig.for_model(LARGER, 64, 100, decode_rows=16, decode_steps=4)
    assert (config.decode_rows, config.decode_steps, config.prefill_rows) == (16, 4, 32)


@pytest.mark.parametrize("max_length", [100, 128, 200, 256])
def test_cache_has_whole_blocks_and_room_behind_the_longest_context(max_length):
    config = EngineConfig(num_slots=3, max_length=max_length, prefill_chunk=32, decode_steps=4, block=64)
    assert config.cache_length % config.block == 0
    assert config.scratch >= max_length
    assert config.scratch + 32 <= config.cache_length
    keys, values = empty_cache(MODEL, config)[0]
    assert keys.shape == (8, 2, 32, config.cache_length)
    assert values.shape == (8, 2, config.cache_length, 32)


def test_a_context_longer_than_the_models_is_refused():
    with pytest.raises(ConfigError, match="max_length=2049.*max_position=2048"):
        EmbeddedEngine(MODEL, {}, EngineConfig(max_length=2049))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"decode_rows": 32, "prefill_chunk": 8, "prefill_rows": 32},
        {"decode_rows": 32, "prefill_chunk": 8, "prefill_rows": 32, "keep_sampled": True, "joined_heads": 2},
        {"kv_dtype": "bfloat16"},
    ],
)
def test_turns_are_bitwise_the_same_alone_and_in_a_crowd_at_the_local_scale(dtype, sizes):
    model = ModelConfig(**{**vars(MODEL), "dtype": dtype})
    params = jax.tree.map(lambda leaf: leaf * (5 if leaf.ndim > 1 else 1), init_params(model, jax.random.key(0)))
    engine = EmbeddedEngine(model, params, EngineConfig(num_slots=64, max_length=512, **sizes))

    def request(number):
        ids = tuple(np.random.default_rng(number).integers(0, model.vocab_size, 3 + 37 * number % 400).tolist())
        return GenerateRequest(str(number), str(number), ids, SamplingParams(max_new_tokens=24, seed=number))

    async def crowd(numbers):
        return await asyncio.gather(*(engine.generate(request(number)) for number in numbers))

    try:
        together = asyncio.run(crowd(range(80)))
        assert engine.stats()["evictions"] > 0
        for number in range(0, 80, 8):
            asyncio.run(engine.end_session(str(number)))
            (alone,) = asyncio.run(crowd([number]))
            assert (alone.ids, alone.logprobs) == (together[number].ids, together[number].logprobs)
    finally:
        engine.close()
