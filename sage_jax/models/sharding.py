"""Logical axis names of parameters and activations, and the one table that lays them on a mesh.

The model names axes by meaning ("embed", "heads", ...). `RULES` says which mesh axis cuts which of them; another
layout is another table and no other change. Mesh axes: `data` copies parameters and splits rows, `fsdp` splits rows and
parameters, `sequence` splits the tokens of a row (keys and values are gathered for attention), `tensor` splits heads,
the MLP and the vocabulary (Megatron, arXiv 1909.08053).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sage_jax.errors import ConfigError

MESH_AXES = ("data", "fsdp", "sequence", "tensor")  # tensor last: its neighbours talk most and should lie closest

MeshAxes = str | tuple[str, ...] | None

RULES: Mapping[str, MeshAxes] = {
    # activations
    "rows": ("data", "fsdp"),
    "length": "sequence",
    "key_length": None,
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


def parse_mesh(text: str) -> dict[str, int]:
    """Reads "fsdp:8,tensor:4", or "fsdp:8+tensor:4" where a comma would end the value.

    Raises:
      ConfigError: names the part that is wrong.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, text.replace("+", ",").split(",")):
        axis, _, size = part.partition(":")
        if axis not in MESH_AXES or not size.isdigit() or not int(size) or axis in sizes:
            raise ConfigError(
                f"mesh={text!r}: {part!r} is wrong; the form is axis:size, joined by ',' or '+', "
                f"with each of {', '.join(MESH_AXES)} at most once"
            )
        sizes[axis] = int(size)
    return sizes


def make_mesh(
    data: int = -1,
    fsdp: int = 1,
    sequence: int = 1,
    tensor: int = 1,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Makes the mesh of the learner; use it as `with jax.set_mesh(mesh):`.

    Args:
      data: copies of the parameters.
      fsdp: pieces that each copy is cut into, together with the rows.
      sequence: pieces that a row's tokens are cut into.
      tensor: pieces that heads, MLP and vocabulary are cut into.
      devices: all of them by default.

    One of them may be -1: what the others leave.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices, or the chips' network has no such mesh.
    """
    devices = list(devices if devices is not None else jax.devices())
    sizes = [data, fsdp, sequence, tensor]
    text = ", ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, sizes, strict=True))
    if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
        raise ConfigError(f"mesh {text}: each size must be at least 1, and one of them may be -1")
    if -1 in sizes:
        sizes[sizes.index(-1)] = max(len(devices) // math.prod(size for size in sizes if size != -1), 1)
    if math.prod(sizes) != len(devices):
        raise ConfigError(f"mesh {text}: the sizes must multiply to the number of devices, {len(devices)}")
    # Auto axes: the compiler propagates layouts from the parameters and from `constrain`.
    kinds = (AxisType.Auto,) * len(MESH_AXES)
    try:
        return jax.make_mesh(sizes, MESH_AXES, devices=devices, axis_types=kinds)
    except NotImplementedError as error:
        raise ConfigError(f"mesh {text}: these chips are not connected in such a way: {error}") from error


class Shards(NamedTuple):
    """Into how many pieces the set mesh cuts a batch: its rows, and the tokens of each row."""

    rows: int
    length: int


def token_shards() -> Shards:
    """Returns how the mesh that is set cuts batches; (1, 1) without a mesh."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return Shards(sizes.get("data", 1) * sizes.get("fsdp", 1), sizes.get("sequence", 1))


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
    """Returns the layout of [N, T] batches. N must be a multiple of data x fsdp, T of sequence."""
    return NamedSharding(mesh, PartitionSpec(RULES["rows"], RULES["length"]))


def token_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the layout of [C] trained tokens, which lie in order of the devices that hold their hidden states."""
    return NamedSharding(mesh, PartitionSpec((*RULES["rows"], RULES["length"])))


def vocab_parts(size: int) -> int:
    """Returns into how many parts the mesh that is set cuts a vocabulary of `size` entries; 1 where it stays whole."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    (axes,) = partition_spec(("vocab",), (size,), sizes)
    return math.prod(sizes[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))


def map_tokens(
    function: Callable[..., Any], hidden: jax.Array, source: jax.Array, targets: jax.Array, *shared: Any
) -> Any:
    """Runs function(hidden [P, D], source [C], targets [C], *shared) on every device's own rows and tokens.

    So no hidden state changes hands for the vocabulary head, and the head's gradient is summed over devices once, not
    once a block.

    Args:
      function: sees P hidden states and the C tokens that they predict; returns arrays [C].
      hidden: [R, T, D].
      source: flat index in [0, R * T) of the hidden state that predicts each token. With a mesh, the tokens lie in
        equal runs, one for each piece of `hidden`, in the order of the pieces (`data.packing.micro_batches`).
      targets: token ids.
      *shared: arrays that every device needs whole along the batch axes, such as the head.
    """
    length, width = hidden.shape[1:]
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in (*RULES["rows"], RULES["length"]) if dict(mesh.shape).get(axis, 1) > 1)
    if not axes:
        return function(hidden.reshape(-1, width), source, targets, *shared)

    def own(hidden, source, targets, *shared):
        rows, tokens, _ = hidden.shape
        place = source // length % rows * tokens + source % length % tokens
        return function(hidden.reshape(-1, width), place, targets, *shared)

    whole, token = PartitionSpec(), PartitionSpec(axes)
    layout = partition_spec(("rows", "length", None), hidden.shape, dict(mesh.shape))
    return jax.shard_map(
        own,
        in_specs=(layout, token, token, *(whole for _ in shared)),
        out_specs=token,
        axis_names=set(axes),
        check_vma=False,  # loops in `function` start from constants, which are the same on every device
    )(hidden, source, targets, *shared)


def map_queries(
    attend: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array
) -> jax.Array:
    """Runs attend(q, k, v, mask) with every device's own queries against the keys of whole rows.

    The keys and values of a row are gathered over the `sequence` axis; with grouped heads they are a few times smaller
    than the queries. Without that axis this is a plain call, which the compiler lays out by itself.

    Args:
      attend: attention of queries [N, T, H, K] against S keys [N, S, G, K] under a mask [N, T, S].
      q: [N, T, H, K].
      k: [N, S, G, K].
      v: [N, S, G, K].
      mask: [N, T, S].
    """
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    if sizes.get("sequence", 1) == 1:
        return attend(q, k, v, mask)
    own = partition_spec(("rows", "length", None, None), q.shape, sizes)
    keys = partition_spec(("rows", "key_length", None, None), k.shape, sizes)
    seen = partition_spec(("rows", "length", "key_length"), mask.shape, sizes)
    axes = {axis for axis in (*RULES["rows"], RULES["length"]) if sizes[axis] > 1}
    return jax.shard_map(attend, in_specs=(own, keys, keys, seen), out_specs=own, axis_names=axes)(q, k, v, mask)
