"""Sizes of the named models."""

import pytest

from sage_jax.errors import ConfigError
from sage_jax.models.memory import count_parameters
from sage_jax.models.presets import PRESETS, preset

# Counts from the released checkpoints (sum over the safetensors index; tied embeddings once).
PARAMETERS = {
    "qwen2.5-7b-instruct": 7_615_616_512,
    "qwen2.5-32b-instruct": 32_763_876_352,
    "qwen3-4b": 4_022_468_096,
    "smollm2-135m-instruct": 134_515_008,
    "benchmark-8m": 8_001_792,
    "tiny": 22_816,
}


def test_parameter_counts_are_those_of_the_released_models():
    assert {name: count_parameters(config) for name, config in PRESETS.items()} == PARAMETERS


def test_tiny_count_worked_by_hand():
    # embedding 128*32; a layer: norms 2*32, q 32*32+32, k and v 2*(32*16+16), o 32*32, mlp 3*32*64; final norm 32
    layer = 64 + 1056 + 1056 + 1024 + 6144
    assert count_parameters(preset("tiny")) == 128 * 32 + 2 * layer + 32


def test_fields_can_be_changed():
    assert preset("tiny", vocab_size=99).vocab_size == 99


def test_unknown_names_and_fields_are_refused_with_a_hint():
    with pytest.raises(ConfigError, match="did you mean 'qwen3-4b'"):
        preset("qwen3-4B")
    with pytest.raises(ConfigError, match="model.width=3"):
        preset("tiny", width=3)
