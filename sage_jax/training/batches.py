"""Micro-batches on a mesh: which device gets which part, and the shapes of an update that is compiled but not run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sage_jax.data.packing import MicroBatches
from sage_jax.models.sharding import row_sharding, token_sharding


def batch_layout(micro: MicroBatches, mesh: Mesh) -> MicroBatches:
    """Returns the sharding of every array of `micro`: rows and tokens cut, the axis of micro-batches whole."""

    def place(array) -> NamedSharding:
        one = row_sharding(mesh) if len(array.shape) == 3 else token_sharding(mesh)
        return NamedSharding(mesh, PartitionSpec(None, *one.spec))

    return jax.tree.map(place, micro)


def place_batch(micro: MicroBatches) -> MicroBatches:
    """Cuts a host batch over the mesh that is set; without a mesh it is returned as it is.

    In a run of several processes every process has the whole batch and sends only their parts to its own devices.
    """
    mesh = jax.sharding.get_mesh()
    if mesh.empty or mesh.size == 1:
        return micro
    return jax.tree.map(
        lambda array, at: jax.make_array_from_callback(array.shape, at, lambda index: np.asarray(array[index])),
        micro,
        batch_layout(micro, mesh),
    )


def abstract_batch(
    micros: int,
    rows: int,
    length: int,
    tokens: int,
    *,
    mesh: Mesh | None = None,
    old_logprobs: bool = False,
    ends: bool = False,
) -> MicroBatches:
    """Returns the shapes of `micros` micro-batches of [rows, length] with `tokens` places for trained tokens."""

    def row(dtype=jnp.int32):
        return jax.ShapeDtypeStruct((micros, rows, length), dtype)

    def token(dtype=jnp.float32):
        return jax.ShapeDtypeStruct((micros, tokens), dtype)

    micro = MicroBatches(
        ids=row(),
        positions=row(),
        segment_ids=row(),
        source=token(jnp.int32),
        targets=token(jnp.int32),
        mask=token(),
        advantages=token(),
        engine_logprobs=token(),
        sequence_ids=token(jnp.int32),
        old_logprobs=token() if old_logprobs else None,
        ends=row() if ends else None,
    )
    if mesh is None or mesh.size == 1:
        return micro
    layout = batch_layout(micro, mesh)
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), micro, layout)
