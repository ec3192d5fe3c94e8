"""Causal attention inside packed rows, with grouped key and value heads that are never repeated in memory.

`attend_packed` is the one call: it takes what each key is seen by and runs the implementation that fits the platform.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sage_jax.errors import ConfigError
from sage_jax.models.sharding import constrain, map_queries
from sage_jax.models.splash import SPLASH_BLOCK, splash_attention
from sage_jax.models.tiled_attention import tiled_attention

IMPLEMENTATIONS = ("xla", "recompute", "tiled", "cudnn", "splash")
_MASKED = ("xla", "recompute", "cudnn")  # those that take a mask
_MIN_BLOCK, _MAX_BLOCKS = 128, 16


def choose(implementation: str, *, length: int, dtype: Any, tree: bool = False) -> str:
    """Returns the implementation that "auto" stands for on the platform of the set mesh, or of this process.

    Args:
      implementation: "auto", or a name, which is returned as it is.
      length: tokens of a row.
      dtype: of queries and keys.
      tree: whether segments share prefixes, which splash attention cannot mask.

    Raises:
      ConfigError: an unknown name, or splash attention for what it cannot do.
    """
    splash_fits = length % SPLASH_BLOCK == 0 and not tree
    if implementation == "auto":
        mesh, platform = jax.sharding.get_abstract_mesh(), _platform()
        if platform == "tpu" and splash_fits and dict(mesh.shape).get("sequence", 1) == 1:
            return "splash"
        if platform == "gpu" and jnp.dtype(dtype).itemsize == 2:
            return "cudnn"
        return "tiled" if platform == "cpu" and mesh.size <= 1 else "xla"
    if implementation not in IMPLEMENTATIONS:
        raise ConfigError(f"attention={implementation!r}: must be auto or one of {', '.join(IMPLEMENTATIONS)}")
    if implementation == "splash" and not splash_fits:
        raise ConfigError(
            f"attention='splash' with rows of {length} tokens{' that share prefixes' if tree else ''}: "
            f"it takes rows of a multiple of {SPLASH_BLOCK} tokens without shared prefixes; use auto"
        )
    return implementation


def _platform() -> str:
    """Returns the platform of the mesh that is set, which need not be here, or of this process."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def segment_ends(segment_ids: Int[Array, "n t"]) -> Int[Array, "n t"]:
    """Returns for each token the place behind the run of equal segment ids that it stands in.

    Key s is seen by the queries s <= t < ends[s]. With a tree of shared prefixes laid out depth first, the end of a
    token's subtree takes this place (`data.prefixes`).
    """
    length = segment_ids.shape[-1]
    last = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (0, 1)), constant_values=True)
    places = jnp.where(last, jnp.arange(1, length + 1), length)
    return jax.lax.cummin(places, axis=1, reverse=True)


def visible(ends: Int[Array, "n t"]) -> Bool[Array, "n t t"]:
    """Returns the mask [N, query, key] that `ends` stands for."""
    place = jnp.arange(ends.shape[-1])
    query, key = place[:, None], place[None, :]
    return (key <= query) & (query < ends[:, None, :])


def segment_mask(segment_ids: Int[Array, "n t"]) -> Bool[Array, "n t t"]:
    """True where query t may see key s: not later in the row, and in the same run of equal segment ids.

    Padding (segment 0) sees earlier padding and itself, so no row of the softmax is ever empty, and no real token
    sees padding.
    """
    return visible(segment_ends(segment_ids))


def attend_packed(
    ends: Int[Array, "n t"], *, implementation: str = "auto", dtype: Any = jnp.float32, tree: bool = False
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Returns attend(q [N,T,H,K], k [N,T,G,K], v [N,T,G,K]) -> [N,T,H,K] for the layers of one forward pass.

    Args:
      ends: what each key is seen by, from `segment_ends`.
      implementation: "auto" takes "tiled" on a CPU, "cudnn" on a GPU in bfloat16, "splash" on a TPU, and "xla" for
        what these cannot do; or one of these, or "recompute" (see `attention`).
      dtype: of queries and keys.
      tree: whether the segments share prefixes.

    Raises:
      ConfigError: see `choose`.
    """
    chosen = choose(implementation, length=ends.shape[1], dtype=dtype, tree=tree)
    if chosen == "tiled":
        return lambda q, k, v: tiled_attention(q, k, v, ends)
    if chosen == "splash":
        return lambda q, k, v: splash_attention(q, k, v, ends, interpret=_platform() != "tpu")
    mask = constrain(visible(ends), "rows", "length", "key_length")
    return lambda q, k, v: map_queries(functools.partial(attention, implementation=chosen), q, k, v, mask)


def attention(
    q: Float[Array, "n t h k"],
    k: Float[Array, "n s g k"],
    v: Float[Array, "n s g k"],
    mask: Bool[Array, "n t s"],
    *,
    implementation: str = "xla",
    block: int | None = None,
) -> Float[Array, "n t h k"]:
    """Causal softmax attention, softmax(q k' / sqrt(K)) v, where head h reads key head h // (H / G).

    Args:
      q: rotated queries [N, T, H, K].
      k: rotated keys [N, S, G, K]; G divides H.
      v: values [N, S, G, K].
      mask: [N, T, S], True where the query may see the key; causal, and every query must see a key.
      implementation: "xla" anywhere; "recompute" the same, but the backward pass makes each block's scores again
        instead of keeping them; "cudnn" on NVIDIA GPUs, needs bfloat16 or float16.
      block: queries scored at one time, against the keys up to the block's end only. Skipping the masked half and
        staying in cache makes it three times faster than one T x T product on a CPU (T = 512, K = 32). None takes
        `block_length(T)`. With T != S, where the queries are one device's part of a row, every block sees all keys.

    Returns:
      [N, T, H, K] in the dtype of `q`.

    Raises:
      ConfigError: unknown implementation.
    """
    if implementation not in _MASKED:
        raise ConfigError(f"attention={implementation!r}: must be one of {', '.join(_MASKED)}")
    if implementation == "cudnn":
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="cudnn")
    attend = jax.checkpoint(_attend_block) if implementation == "recompute" else _attend_block
    return _blocked(q, k, v, mask, block or block_length(q.shape[1]), attend)


def block_length(length: int) -> int:
    """Returns how many queries are scored at a time: 128, or more where that would make over 16 blocks to compile."""
    return max(_MIN_BLOCK, -(-length // _MAX_BLOCKS))


def _blocked(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, block: int, attend: Callable[..., jax.Array]
) -> jax.Array:
    """Attention with the queries in blocks, each against the keys up to its end."""
    rows, length, heads, width = q.shape
    groups = k.shape[2]
    q = q.reshape(rows, length, groups, heads // groups, width).transpose(0, 2, 3, 1, 4) * width**-0.5
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    out = []
    for start in range(0, length, block):
        queries = q[:, :, :, start : start + block]
        seen = start + queries.shape[3] if k.shape[2] == length else k.shape[2]
        part = mask[:, None, start : start + queries.shape[3], :seen]
        out.append(attend(queries, k[:, :, :seen], v[:, :, :seen], part))
    joined = jnp.concatenate(out, axis=3)
    return joined.transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, width)


def _attend_block(
    q: Float[Array, "n g h t k"],
    k: Float[Array, "n g s k"],
    v: Float[Array, "n g s k"],
    mask: Bool[Array, "n 1 t s"],
) -> Float[Array, "n g h t k"]:
    """Returns the attention of some queries over some keys; the heads of a group are rows of one matrix product."""
    rows, groups, heads, length, width = q.shape
    # Scores and softmax in float32 or wider: in bfloat16 the exponent of a score near 50 is off by 20 %.
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum(
        "ngqk,ngsk->ngqs", q.reshape(rows, groups, heads * length, width), k, preferred_element_type=wide
    ).reshape(rows, groups, heads, length, -1)
    scores = jnp.where(mask[:, :, None], scores, jnp.finfo(wide).min)
    # The largest score is a constant of the gradient: the quotient below does not depend on it.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    total = weights.sum(axis=-1)
    out = jnp.einsum("ngqs,ngsk->ngqk", weights.reshape(rows, groups, heads * length, -1).astype(v.dtype), v)
    return out.reshape(rows, groups, heads, length, width) / total[..., None].astype(v.dtype)
