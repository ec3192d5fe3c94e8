"""What a decoder is: the sizes and switches that tell Qwen2/2.5, Qwen3, Llama and SmolLM2 apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sage_jax.errors import ConfigError

_ROPE_KINDS = ("linear", "llama3", "yarn")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than the first training's.

    Field names are those of Hugging Face `rope_scaling`; which ones are read depends on `rope_type`.

    Attributes:
      rope_type: "linear" (factor), "llama3" (factor, low and high frequency factor, original length) or "yarn"
        (factor, betas, original length, attention factor).
      factor: by how much the context grows.
      original_max_position_embeddings: context length of the first training, in tokens.
      low_freq_factor: llama3; wavelengths longer than original / low are divided by `factor`.
      high_freq_factor: llama3; wavelengths shorter than original / high are kept.
      beta_fast: yarn; rotations over the original context above which a frequency is kept.
      beta_slow: yarn; rotations below which a frequency is divided by `factor`.
      attention_factor: yarn; multiplies cosines and sines; None means 0.1 ln(factor) + 1.
      truncate: yarn; round the bounds of the ramp to whole frequencies.
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.rope_type not in _ROPE_KINDS:
            raise ConfigError(f"rope_scaling.rope_type={self.rope_type!r}: must be one of {', '.join(_ROPE_KINDS)}")
        if self.factor < 1.0:
            raise ConfigError(f"rope_scaling.factor={self.factor!r}: must be at least 1")
        if self.rope_type == "llama3" and self.original_max_position_embeddings is None:
            raise ConfigError("rope_scaling.original_max_position_embeddings is missing: llama3 scaling needs it")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> RopeScaling:
        """Builds it from a Hugging Face dict. Raises ConfigError naming the first field it does not know."""
        values = dict(mapping)
        values.setdefault("rope_type", values.pop("type", None))
        values.pop("type", None)
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(
                    f"rope_scaling.{name}={values[name]!r}: unknown; known are {', '.join(sorted(known))}"
                )
        if "factor" not in values:
            raise ConfigError("rope_scaling.factor is missing: give by how much the context grows")
        return cls(**values)


LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters beside frozen projections (arXiv 2106.09685): W x + (alpha / rank) B A x.

    Attributes:
      rank: r, columns of A and rows of B.
      alpha: scale of the adapters, in units of the rank.
      targets: projections that get one, of q, k, v, o, gate, up and down.
    """

    rank: int
    alpha: float = 16.0
    targets: tuple[str, ...] = LORA_TARGETS

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"lora_rank={self.rank!r}: must be at least 1; leave LoRA out to train all parameters")
        if self.alpha <= 0:
            raise ConfigError(f"lora_alpha={self.alpha!r}: must be above 0")
        unknown = [name for name in self.targets if name not in LORA_TARGETS]
        if unknown or not self.targets:
            raise ConfigError(f"lora_targets={self.targets!r}: expected some of {', '.join(LORA_TARGETS)}")

    @property
    def scale(self) -> float:
        """Factor of the adapters' product."""
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of one decoder. Hashable, so that it can be a static argument of a jitted function.

    Attributes:
      vocab_size: rows of the embedding, V.
      hidden_size: residual width, D.
      intermediate_size: width inside the gated MLP, F.
      num_layers: L.
      num_heads: query heads, H.
      num_kv_heads: key and value heads; divides `num_heads`.
      head_dim: width of one head, K; even.
      rope_theta: base of the rotary frequencies.
      rope_scaling: None, or how the frequencies are stretched (a Hugging Face dict is converted).
      qkv_bias: biases on the q, k and v projections (Qwen2).
      o_bias: a bias on the attention's output projection too (Llama with attention_bias).
      qk_norm: RMS norm of every query and key head before the rotation (Qwen3).
      tie_embeddings: the output head is the embedding.
      rms_eps: added to the mean square inside every norm.
      max_position: the longest context, in tokens, that the weights were trained for.
      dtype: what matrix products are computed in: "float32" or "bfloat16". Parameters keep their own dtype.
      lora: adapters beside some projections, or None; see `models.lora`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    rms_eps: float = 1e-6
    max_position: int = 2048
    dtype: str = "float32"
    lora: LoraConfig | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rope_scaling, Mapping):
            object.__setattr__(self, "rope_scaling", RopeScaling.from_mapping(self.rope_scaling))
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "max_position"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"model.{name}={value!r}: must be a whole number of at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model.num_kv_heads={self.num_kv_heads}: must divide model.num_heads={self.num_heads}, "
                "because each key head serves a whole group of query heads"
            )
        if self.head_dim % 2:
            raise ConfigError(f"model.head_dim={self.head_dim}: must be even, rotary embedding turns pairs")
        if self.rope_theta <= 0:
            raise ConfigError(f"model.rope_theta={self.rope_theta!r}: must be positive")
        if self.rms_eps <= 0:
            raise ConfigError(f"model.rms_eps={self.rms_eps!r}: must be positive")
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"model.dtype={self.dtype!r}: must be 'float32' or 'bfloat16'")
