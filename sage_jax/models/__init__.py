"""The policy model: one decoder for several families, its layout on a mesh, and Hugging Face folders."""

from sage_jax.models.config import ModelConfig, RopeScaling
from sage_jax.models.transformer import (
    Params,
    Transformer,
    forward,
    forward_cached,
    head_weights,
    init_params,
    unstack_layers,
)

__all__ = [
    "ModelConfig",
    "Params",
    "RopeScaling",
    "Transformer",
    "forward",
    "forward_cached",
    "head_weights",
    "init_params",
    "unstack_layers",
]
