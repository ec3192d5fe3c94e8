"""Logical axis names of parameters and activations, and the one table that lays them on a mesh.

The model names axes by meaning ("embed", "heads", ...). `RULES` says which mesh axis cuts which of them; another
layout is another table and no other change. Mesh axes: `data` copies parameters and splits rows, `fsdp` splits rows and
parameters, `tensor` splits heads, the MLP and the vocabulary (Megatron, arXiv 1909.08053).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sage_jax.errors import ConfigError

MESH_AXES = ("data", "fsdp", "tensor")

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
    "lora_rank": None,
}


def partition_spec(
    names: Sequence[str | None],
    shape: Sequence[int],
    axis_sizes: Mapping[str, int],
) -> PartitionSpec:
    """Turns logical names into a PartitionSpec; a dimension that its mesh axes do not divide stays whole."""
    entries: list[MeshAxes] = []
    for name, size in zip(names, shape, strict=True):
        axes = RULES[name] if name is not None else None
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


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes the mesh of the learner; use it as `with jax.set_mesh(mesh):`.

    Args:
      data: copies of the parameters.
      fsdp: pieces that each copy is cut into, together with the rows.
      tensor: pieces that heads, MLP and vocabulary are cut into.
      devices: all of them by default.

    One of the three may be -1: what the others leave.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices.
    """
    devices = list(devices if devices is not None else jax.devices())
    sizes = [data, fsdp, tensor]
    text = ", ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, sizes, strict=True))
    if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
        raise ConfigError(f"mesh {text}: each size must be at least 1, and one of them may be -1")
    if -1 in sizes:
        sizes[sizes.index(-1)] = max(len(devices) // math.prod(size for size in sizes if size != -1), 1)
    if math.prod(sizes) != len(devices):
        raise ConfigError(f"mesh {text}: the sizes must multiply to the number of devices, {len(devices)}")
    # Auto axes: the compiler propagates layouts from the parameters and from `constrain`.
    return jax.make_mesh(sizes, MESH_AXES, devices=devices, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def param_shardings(axes: Any, shapes: Any, mesh: Mesh) -> Any:
    """Returns a NamedSharding for every parameter.

    Args:
      axes: `transformer.logical_axes(config)`.
      shapes: the parameters, or `transformer.abstract_params(config)`.
      mesh: from `make_mesh`.
    """
    sizes = dict(mesh.shape)
    return jax.tree.map(
        lambda names, leaf: NamedSharding(mesh, partition_spec(names, leaf.shape, sizes)),
        axes,
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the layout of [N, T] batches: rows cut over data and fsdp. N must be a multiple of their product."""
    return NamedSharding(mesh, PartitionSpec(RULES["rows"], None))


def placer(axes: Any, mesh: Mesh) -> Callable[[tuple[str, ...], np.ndarray], jax.Array]:
    """Returns the `place` of `hf.load` that puts each parameter on the mesh, piece by piece, as it is read."""
    sizes = dict(mesh.shape)

    def place(path: tuple[str, ...], array: np.ndarray) -> jax.Array:
        names = axes
        for key in path:
            names = names[key]
        return jax.device_put(array, NamedSharding(mesh, partition_spec(names, array.shape, sizes)))

    return place
