"""Sizes of the models that the configs name. Weights come from a Hugging Face folder of the same sizes, or at random.

Sources: the config.json files of the released models.
"""

from __future__ import annotations

import dataclasses
import difflib

from sage_jax.errors import ConfigError
from sage_jax.models.config import ModelConfig

_QWEN25 = {"vocab_size": 152064, "head_dim": 128, "rope_theta": 1e6, "qkv_bias": True, "max_position": 32768}

PRESETS: dict[str, ModelConfig] = {
    "qwen2.5-7b-instruct": ModelConfig(
        hidden_size=3584, intermediate_size=18944, num_layers=28, num_heads=28, num_kv_heads=4, **_QWEN25
    ),
    "qwen2.5-32b-instruct": ModelConfig(
        hidden_size=5120, intermediate_size=27648, num_layers=64, num_heads=40, num_kv_heads=8, **_QWEN25
    ),
    "qwen3-4b": ModelConfig(
        vocab_size=151936,
        hidden_size=2560,
        intermediate_size=9728,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rope_theta=1e6,
        qk_norm=True,
        tie_embeddings=True,
        max_position=40960,
    ),
    "smollm2-135m-instruct": ModelConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rope_theta=1e5,
        tie_embeddings=True,
        rms_eps=1e-5,
        max_position=8192,
    ),
    # The model on which throughput and memory are measured beside other trainers.
    "benchmark-8m": ModelConfig(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=1024,
        num_layers=6,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        rope_theta=10_000.0,
        qkv_bias=True,
        tie_embeddings=True,
    ),
    "tiny": ModelConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        qkv_bias=True,
        tie_embeddings=True,
        max_position=512,
    ),
}


def preset(name: str, **changes: object) -> ModelConfig:
    """Returns a preset with some fields changed. Raises ConfigError for an unknown name or field."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PRESETS)}"
        raise ConfigError(f"model={name!r}: unknown; {hint}")
    known = {field.name for field in dataclasses.fields(ModelConfig)}
    for field in changes:
        if field not in known:
            raise ConfigError(f"model.{field}={changes[field]!r}: unknown; known are {', '.join(sorted(known))}")
    return dataclasses.replace(PRESETS[name], **changes)
