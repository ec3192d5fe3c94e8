"""Rotary position embedding with the scalings that Hugging Face configs name: linear, llama3, yarn.

Sources: RoFormer (arXiv 2104.09864) eq. 34; YaRN (arXiv 2309.00071) section 3; the llama3 rule is that of Llama 3.1's
released code. Frequencies are made in NumPy float64 once per trace: they are constants of the model.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sage_jax.models.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """Returns the angle per token of every rotary pair, [head_dim / 2] float64, and the factor on cos and sin."""
    half = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    inverse = config.rope_theta**-half
    scaling = config.rope_scaling
    if scaling is None:
        return inverse, 1.0
    if scaling.rope_type == "linear":
        return inverse / scaling.factor, 1.0
    if scaling.rope_type == "llama3":
        return _llama3(inverse, scaling), 1.0
    return _yarn(inverse, scaling, config)


def _llama3(inverse: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Divides long wavelengths by the factor, keeps short ones, blends between."""
    turns = scaling.original_max_position_embeddings * inverse / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - keep) * inverse / scaling.factor + keep * inverse


def _yarn(inverse: np.ndarray, scaling: RopeScaling, config: ModelConfig) -> tuple[np.ndarray, float]:
    """Blends kept and divided frequencies along a ramp over the index of the pair (YaRN section 3.2)."""
    original = scaling.original_max_position_embeddings or config.max_position
    dim = config.head_dim

    def index_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0
    return ramp * inverse / scaling.factor + (1 - ramp) * inverse, float(factor)


def rope_table(
    config: ModelConfig, positions: Int[Array, "n t"]
) -> tuple[Float[Array, "n t half"], Float[Array, "n t half"]]:
    """Returns cos and sin of every token's angles in float32 (bfloat16 cannot tell position 2047 from 2048)."""
    inverse, factor = inverse_frequencies(config)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(inverse, jnp.float32)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(
    x: Float[Array, "n t h k"], cos: Float[Array, "n t half"], sin: Float[Array, "n t half"]
) -> Float[Array, "n t h k"]:
    """Turns the pairs (i, i + K/2) of every head by the token's angles; computed in float32 or wider."""
    first, second = jnp.split(x.astype(jnp.promote_types(x.dtype, jnp.float32)), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jax.lax.convert_element_type(turned, x.dtype)
