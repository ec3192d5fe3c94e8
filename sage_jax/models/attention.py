"""Causal attention inside packed rows, with grouped key and value heads that are never repeated in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sage_jax.errors import ConfigError

IMPLEMENTATIONS = ("xla", "chunked", "cudnn")
QUERY_CHUNK = 512


def segment_mask(segment_ids: Int[Array, "n t"]) -> Bool[Array, "n t t"]:
    """True where query t may see key s: not later in the row, and of the same segment.

    Padding (segment 0) sees earlier padding and itself, so no row of the softmax is ever empty, and no real token
    sees padding.
    """
    length = segment_ids.shape[-1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    return causal & (segment_ids[:, :, None] == segment_ids[:, None, :])


def attention(
    q: Float[Array, "n t h k"],
    k: Float[Array, "n s g k"],
    v: Float[Array, "n s g k"],
    mask: Bool[Array, "n t s"],
    *,
    implementation: str = "xla",
) -> Float[Array, "n t h k"]:
    """Softmax attention, softmax(q k' / sqrt(K)) v, where head h reads key head h // (H / G).

    Args:
      q: rotated queries [N, T, H, K].
      k: rotated keys [N, S, G, K]; G divides H.
      v: values [N, S, G, K].
      mask: [N, T, S], True where the query may see the key. Every query must see a key.
      implementation: "xla" anywhere; "chunked" anywhere, for long rows of training (T = S and a causal mask): the
        queries in pieces of `QUERY_CHUNK`, each against the keys up to its end, scores recomputed in the backward
        pass; "cudnn" on NVIDIA GPUs, needs bfloat16 or float16.

    Returns:
      [N, T, H, K] in the dtype of `q`.

    Raises:
      ConfigError: unknown implementation.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ConfigError(f"attention={implementation!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    if implementation == "cudnn":
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="cudnn")
    if implementation == "chunked":
        return _chunked(q, k, v, mask)
    return _dense(q, k, v, mask)


def _dense(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention with the whole [N, H, T, S] scores in memory."""
    rows, length, heads, width = q.shape
    groups = k.shape[2]
    q = q.reshape(rows, length, groups, heads // groups, width) * width**-0.5
    # Scores and softmax in float32: in bfloat16 the exponent of a score near 50 is off by 20 %.
    scores = jnp.einsum("ntghk,nsgk->nghts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("nghts,nsgk->ntghk", weights, v).reshape(rows, length, heads, width)


def _chunked(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Causal attention in pieces of queries; skips the keys after each piece, so half of the scores for long rows."""
    length = q.shape[1]
    piece = jax.checkpoint(_dense)
    out = []
    for start in range(0, length, QUERY_CHUNK):
        end = min(start + QUERY_CHUNK, length)
        out.append(piece(q[:, start:end], k[:, :end], v[:, :end], mask[:, start:end, :end]))
    return jnp.concatenate(out, axis=1)
