"""The policy model: one decoder for several families, its layout on a mesh, and Hugging Face folders."""

from sage_jax.models.config import ModelConfig, RopeScaling
from sage_jax.models.initialisation import add_previous_token_heads
from sage_jax.models.memory import MemoryEstimate, count_parameters, estimate
from sage_jax.models.presets import PRESETS, preset
from sage_jax.models.transformer import (
    Params,
    Transformer,
    abstract_params,
    forward,
    forward_cached,
    head_weights,
    init_params,
    logical_axes,
    unstack_layers,
)

__all__ = [
    "PRESETS",
    "MemoryEstimate",
    "ModelConfig",
    "Params",
    "RopeScaling",
    "Transformer",
    "abstract_params",
    "add_previous_token_heads",
    "count_parameters",
    "estimate",
    "forward",
    "forward_cached",
    "head_weights",
    "init_params",
    "logical_axes",
    "preset",
    "unstack_layers",
]
