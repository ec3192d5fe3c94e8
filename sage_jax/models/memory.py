"""Closed-form memory of one training step: what a device must hold, told before anything is allocated.

An estimate for planning (`--mode=check`); `--mode=compile` gives the compiler's own number. Activations are counted
as the tensors the backward pass keeps (Korthikanti et al., arXiv 2205.05198, section 4, for this decoder), plus one
layer's working set, plus one block of the vocabulary head.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax

from sage_jax.errors import ConfigError
from sage_jax.models.attention import IMPLEMENTATIONS, block_length
from sage_jax.models.config import ModelConfig
from sage_jax.models.sharding import partition_spec
from sage_jax.models.transformer import abstract_params, logical_axes

_BYTES = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes one device holds during an update, by what they are for.

    Attributes:
      parameters: count of the whole model, not of one device.
      weights: the trained parameters.
      reference: a second, frozen copy; 0 without a KL term.
      gradients: one number a parameter.
      optimizer: two moments a parameter (AdamW).
      activations: kept for the backward pass, with one layer's working set.
      head: logits of one block of the vocabulary, forward and backward.
    """

    parameters: int
    weights: int
    reference: int
    gradients: int
    optimizer: int
    activations: int
    head: int

    @property
    def total(self) -> int:
        """Bytes a device needs in all."""
        return self.weights + self.reference + self.gradients + self.optimizer + self.activations + self.head


def count_parameters(config: ModelConfig) -> int:
    """Counts the model's parameters; tied embeddings once."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(config)))


def estimate(
    config: ModelConfig,
    *,
    rows: int,
    length: int,
    mesh: Mapping[str, int] | None = None,
    remat: str = "full",
    param_dtype: str = "float32",
    moment_dtype: str = "float32",
    reference: bool = False,
    max_logits: int = 2**22,
    attention: str = "xla",
) -> MemoryEstimate:
    """Estimates the memory of one update.

    Args:
      config: the model; `config.dtype` is what activations are kept in.
      rows: packed rows of one micro-batch over all devices, N.
      length: tokens a row, T.
      mesh: sizes of the axes data, fsdp, tensor; missing ones are 1.
      remat: "none", "dots" or "full", as in `forward`.
      param_dtype: dtype of parameters and gradients.
      moment_dtype: dtype of the optimizer's moments.
      reference: whether a frozen reference model is held too, in the compute dtype.
      attention: an implementation, as in `attention`; only "xla" keeps scores.
      max_logits: logits that exist at one time on a device (`losses.logprobs`).

    Raises:
      ConfigError: an unknown remat, dtype or attention.
    """
    if remat not in ("none", "dots", "full"):
        raise ConfigError(f"remat={remat!r}: must be one of none, dots, full")
    if attention not in IMPLEMENTATIONS:
        raise ConfigError(f"attention={attention!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    for name, dtype in (("param_dtype", param_dtype), ("moment_dtype", moment_dtype)):
        if dtype not in _BYTES:
            raise ConfigError(f"{name}={dtype!r}: must be one of {', '.join(_BYTES)}")
    mesh = {"data": 1, "fsdp": 1, "tensor": 1, **(mesh or {})}
    held = _held_parameters(config, mesh)
    local_rows = math.ceil(rows / (mesh["data"] * mesh["fsdp"]))
    activations = _activations(config, local_rows, length, mesh["tensor"], remat, attention)
    return MemoryEstimate(
        parameters=count_parameters(config),
        weights=held * _BYTES[param_dtype],
        reference=held * _BYTES[config.dtype] * reference,
        gradients=held * _BYTES[param_dtype],
        optimizer=2 * held * _BYTES[moment_dtype],
        activations=activations,
        head=2 * 4 * min(max_logits, local_rows * length * config.vocab_size),
    )


def _held_parameters(config: ModelConfig, mesh: Mapping[str, int]) -> int:
    """Counts the parameters on one device under the rules table."""
    axes = jax.tree.leaves(logical_axes(config), is_leaf=lambda node: isinstance(node, tuple))
    held = 0
    for leaf, names in zip(jax.tree.leaves(abstract_params(config)), axes, strict=True):
        entries = partition_spec(names, leaf.shape, mesh)
        cut = [axis for entry in entries if entry for axis in (entry if isinstance(entry, tuple) else (entry,))]
        held += math.prod(leaf.shape) // math.prod(mesh[axis] for axis in cut)
    return held


def _activations(config: ModelConfig, rows: int, length: int, tensor: int, remat: str, attention: str) -> int:
    """Bytes kept by all layers for the backward pass, plus what one layer needs while it runs."""
    compute, tokens = _BYTES[config.dtype], rows * length
    dots, rest = _dots_per_token(config, tensor), _rest_per_token(config, tensor)
    square = rows * math.ceil(config.num_heads / tensor) * length * length
    kept = square // 2 if attention == "xla" else 0  # a block sees no keys after its end
    at_once = {"xla": kept, "recompute": square * block_length(length) // length}.get(attention, 0)
    layer = tokens * config.hidden_size * compute
    if remat != "full":
        layer += tokens * dots * compute
    if remat == "none":
        # Softmax weights, and the mask that hides the future as one byte a score.
        layer += tokens * rest * compute + kept * (compute + 1)
    return config.num_layers * layer + tokens * (dots + rest) * compute + 3 * 4 * at_once


def _dots_per_token(config: ModelConfig, tensor: int) -> int:
    """Counts what the projections of one layer give for one token: q, k, v, o, gate, up, down."""
    heads = config.num_heads + 2 * config.num_kv_heads
    return (heads * config.head_dim + 2 * config.intermediate_size) // tensor + 2 * config.hidden_size


def _rest_per_token(config: ModelConfig, tensor: int) -> int:
    """Counts what lies between the projections: two norms and their inputs, rotated q and k, attention out, SwiGLU."""
    heads = 3 * config.num_heads + config.num_kv_heads
    return (heads * config.head_dim + 3 * config.intermediate_size) // tensor + 7 * config.hidden_size
