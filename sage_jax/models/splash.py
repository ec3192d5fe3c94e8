"""JAX's splash attention (a Pallas kernel for TPUs) on packed rows, one call for each device's own rows and heads.

It has not been run on a TPU by this project: the tests run the same kernel in Pallas' interpreter on a CPU.
"""

from __future__ import annotations

import functools

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    CausalMask,
    MultiHeadMask,
    SegmentIds,
    make_splash_mha_single_device,
)
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from sage_jax.models.sharding import partition_spec

SPLASH_BLOCK = 128  # rows are whole multiples of this many tokens


def splash_attention(
    q: Float[Array, "n t h k"],
    k: Float[Array, "n t g k"],
    v: Float[Array, "n t g k"],
    ends: Int[Array, "n t"],
    *,
    interpret: bool = False,
) -> Float[Array, "n t h k"]:
    """Returns the attention of `tiled_attention`, by splash attention; under a mesh on each device's rows and heads.

    Args:
      q: rotated queries [N, T, H, K]; T a multiple of 128.
      k: rotated keys [N, T, G, K].
      v: values [N, T, G, K].
      ends: from `attention.segment_ends`. Segments only: where they share prefixes the result would be wrong.
      interpret: run the kernel in Pallas' interpreter, on any platform.
    """
    run = functools.partial(_own_rows, interpret=interpret)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return run(q, k, v, ends)
    sizes = dict(mesh.shape)
    rows = partition_spec(("rows", None), ends.shape, sizes)
    heads, groups = (
        partition_spec((name,), (count,), sizes)[0]
        for name, count in (("act_heads", q.shape[2]), ("act_kv_heads", k.shape[2]))
    )
    if groups is None:
        heads = None  # a device that had some of the heads would need to pick among all the key heads
    own, keys = (PartitionSpec(rows[0], None, part, None) for part in (heads, groups))
    # The kernel's outputs say nothing of the axes they vary over, so that check is off.
    mapped = jax.shard_map(run, in_specs=(own, keys, keys, rows), out_specs=own, check_vma=False)
    return mapped(q, k, v, ends)


def _own_rows(q: jax.Array, k: jax.Array, v: jax.Array, ends: jax.Array, *, interpret: bool) -> jax.Array:
    length, heads, width = q.shape[1:]
    block = max(size for size in (128, 256, 512) if length % size == 0)
    names = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    sizes = BlockSizes(**dict.fromkeys((*names, "block_q_dq", "block_kv_dq"), block))
    mask = MultiHeadMask([CausalMask((length, length))] * heads)
    kernel = make_splash_mha_single_device(mask, block_sizes=sizes, interpret=interpret)

    def row(q, k, v, ends):
        # Tokens of one segment, and no others, have the same end: it serves as the segment's id.
        return kernel(q * width**-0.5, k, v, segment_ids=SegmentIds(ends, ends))

    out = jax.vmap(row)(*(x.swapaxes(1, 2) for x in (q, k, v)), ends)
    return out.swapaxes(1, 2)
