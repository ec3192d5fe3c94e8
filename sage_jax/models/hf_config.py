"""Translates between Hugging Face `config.json` and `ModelConfig` (families qwen2, qwen3, llama; SmolLM2 is llama)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sage_jax.errors import ConfigError
from sage_jax.models.config import ModelConfig, RopeScaling

FAMILIES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_position": "max_position_embeddings",
    "rms_eps": "rms_norm_eps",
}
# Switches that change the arithmetic and that this decoder does not have, with the value it can run.
_FIXED = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
    "quantization_config": None,
}


def from_hf(values: Mapping[str, Any], source: str, *, dtype: str = "float32") -> ModelConfig:
    """Reads a Hugging Face config, of transformers 4 (`rope_theta`) or 5 (`rope_parameters`).

    Args:
      values: the parsed config.json.
      source: where it came from, for messages.
      dtype: compute dtype of the result.

    Raises:
      ConfigError: another family, a missing size, or a switch this decoder does not have.
    """
    family = values.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(f"{source}: model_type={family!r} is not supported; supported: {', '.join(FAMILIES)}")
    for name, wanted in _FIXED.items():
        if (values.get(name) or wanted) != wanted:
            raise ConfigError(f"{source}: {name}={values[name]!r} is not supported; only {wanted!r} is")
    for name in _SIZES.values():
        if values.get(name) is None:
            raise ConfigError(f"{source}: {name} is missing")
    biased = bool(values.get("attention_bias"))
    if biased and family != "llama":
        raise ConfigError(f"{source}: attention_bias=True is not supported for {family}; only for llama")
    theta, scaling = _read_rope(values, source)
    heads = values["num_attention_heads"]
    return ModelConfig(
        **{ours: values[theirs] for ours, theirs in _SIZES.items()},
        num_kv_heads=values.get("num_key_value_heads") or heads,
        # transformers' Qwen3Config has its own default where the others divide.
        head_dim=values.get("head_dim") or (128 if family == "qwen3" else values["hidden_size"] // heads),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=family == "qwen2" or biased,
        o_bias=biased,
        qk_norm=family == "qwen3",
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        dtype=dtype,
    )


def family_of(config: ModelConfig) -> str:
    """Names the Hugging Face family that has this config's switches. Raises ConfigError when none has."""
    switches = (config.qkv_bias, config.o_bias, config.qk_norm)
    families = {
        (True, False, False): "qwen2",
        (False, False, True): "qwen3",
        (False, False, False): "llama",
        (True, True, False): "llama",
    }
    if switches not in families:
        raise ConfigError(
            f"model.qkv_bias={config.qkv_bias}, o_bias={config.o_bias}, qk_norm={config.qk_norm}: no Hugging Face "
            "family has these together; qwen2 has qkv_bias, qwen3 qk_norm, llama neither or both biases"
        )
    return families[switches]


def to_hf(config: ModelConfig, dtype: str, carried: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Writes a config that both transformers 4 and 5 read.

    Args:
      config: the model.
      dtype: dtype of the stored weights.
      carried: an earlier config.json of the same model, whose other keys (token ids, ...) are kept.

    Raises:
      ConfigError: no family has these switches.
    """
    family = family_of(config)
    scaling = None
    if config.rope_scaling is not None:
        scaling = {k: v for k, v in dataclasses.asdict(config.rope_scaling).items() if v is not None}
    values = {k: v for k, v in (carried or {}).items() if k != "dtype"}
    values.update({theirs: getattr(config, ours) for ours, theirs in _SIZES.items()})
    values.update(
        model_type=family,
        architectures=[FAMILIES[family]],
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_act="silu",
        attention_bias=config.o_bias,
        rope_theta=config.rope_theta,
        rope_scaling=scaling,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta, **(scaling or {})},
        tie_word_embeddings=config.tie_embeddings,
        torch_dtype=dtype,
    )
    return values


def _read_rope(values: Mapping[str, Any], source: str) -> tuple[float, RopeScaling | None]:
    """Returns the base and the scaling, from whichever of the two layouts the file has."""
    rope = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
    theta = float(rope.pop("rope_theta", None) or values.get("rope_theta") or 10_000.0)
    kind = rope.pop("type", None)
    kind = rope.pop("rope_type", kind) or "default"
    if kind == "default":
        return theta, None
    mscale, all_dim = rope.pop("mscale", None), rope.pop("mscale_all_dim", None)
    if mscale and all_dim and rope.get("attention_factor") is None:
        grown = 0.1 * math.log(rope["factor"])
        rope["attention_factor"] = (grown * mscale + 1) / (grown * all_dim + 1)
    if rope.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"{source}: partial_rotary_factor is not supported; only 1.0 is")
    try:
        return theta, RopeScaling.from_mapping({"rope_type": kind, **rope})
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
