"""Logical axis names of parameters and activations, and the one table that lays them on a mesh.

The model names axes by meaning ("embed", "heads", ...). `RULES` says which mesh axis cuts which of them; to try
another layout, pass another table. Mesh axes: `data` copies parameters and splits rows, `fsdp` splits rows and
parameters, `tensor` splits heads, the MLP and the vocabulary (Megatron, arXiv 1909.08053).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from jax.sharding import PartitionSpec

MeshAxes = str | tuple[str, ...] | None

RULES: Mapping[str, MeshAxes] = {
    # activations
    "rows": ("data", "fsdp"),
    "length": None,
    "act_embed": None,
    "act_heads": "tensor",
    "act_kv_heads": "tensor",
    "act_mlp": "tensor",
    # parameters
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "norm": None,
}


def partition_spec(
    names: Sequence[str | None],
    shape: Sequence[int],
    axis_sizes: Mapping[str, int],
    rules: Mapping[str, MeshAxes] = RULES,
) -> PartitionSpec:
    """Turns logical names into a PartitionSpec; a dimension that its mesh axes do not divide stays whole."""
    entries: list[MeshAxes] = []
    for name, size in zip(names, shape, strict=True):
        axes = rules[name] if name is not None else None
        axes = (axes,) if isinstance(axes, str) else (axes or ())
        axes = tuple(axis for axis in axes if axis_sizes.get(axis, 1) > 1)
        parts = 1
        for axis in axes:
            parts *= axis_sizes[axis]
        entries.append(axes if axes and size % parts == 0 else None)
    return PartitionSpec(*entries)


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Pins an activation's layout by its logical names under the mesh that is set; nothing without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(names, x.shape, dict(mesh.shape)))
