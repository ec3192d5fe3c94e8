"""Log-probabilities of chosen tokens from hidden states, without an array of [tokens, V].

The vocabulary head is the largest array of an update: 32k tokens by 152k entries in float32 are 20 GB. Here it exists
for one block of the vocabulary at a time, with a running softmax (arXiv 1805.02867): forwards, and again backwards,
where a block's probabilities follow from its logits, the largest logit and the sum, which are kept. So what an update
needs does not grow with V beyond the head and its gradient, of which each block is read and written once.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MAX_LOGITS = 2**22  # 16 MiB in float32
_MIN_BLOCK = 512  # entries; narrower products would leave a matrix unit idle
_FAR_BELOW = -1e30  # finite, so that its product with a weight of 0 is 0


class TokenScores(NamedTuple):
    """What the vocabulary head says about chosen tokens.

    Attributes:
      logprobs: log-probability of each, float32, in nats.
      entropy: entropy of the distribution it was chosen from, float32, in nats.
      is_top: whether no other token is likelier.
    """

    logprobs: Float[Array, "..."]
    entropy: Float[Array, "..."]
    is_top: Bool[Array, "..."]


def token_logprobs(
    hidden: Float[Array, "... D"],
    head: Float[Array, "V D"],
    targets: Int[Array, "..."],
    *,
    temperature: float = 1.0,
    max_logits: int = MAX_LOGITS,
    entropy_gradient: bool = False,
    parts: int = 1,
) -> TokenScores:
    """Returns log softmax(hidden @ head.T / temperature)[target] and the entropy of that distribution.

    Args:
      hidden: hidden states after the final norm, any float type; hidden state i predicts target i.
      head: output embedding.
      targets: token ids in [0, V).
      temperature: the sampling temperature, so that the ratio to the engine's log-probabilities is 1 on-policy.
      max_logits: logits that exist at one time, but a block has at least 512 entries of the vocabulary.
      entropy_gradient: True lets gradients flow through the entropy (needed by an entropy bonus only).
      parts: equal parts of V that devices hold; every block takes a piece of each, so that all of them work on it.

    Returns:
      Scores shaped like `targets`.
    """
    vocab, width = head.shape
    block = max(_MIN_BLOCK, max_logits // max(1, targets.size)) // parts
    sizes = _Sizes(min(max(1, block), vocab // parts), float(temperature), entropy_gradient)
    scores = _scores(sizes, hidden.reshape(-1, width), head.reshape(parts, -1, width), targets.reshape(-1))
    return jax.tree.map(lambda array: array.reshape(targets.shape), scores)


class _Sizes(NamedTuple):
    block: int  # entries of each part that a block takes
    temperature: float
    entropy_gradient: bool


class _Block(NamedTuple):
    """One block of the vocabulary: head [P * B, D], logits [C, P * B], chosen [C, P * B], and where it starts."""

    head: jax.Array
    logits: jax.Array
    chosen: jax.Array
    start: jax.Array


def _mean_row(hidden: jax.Array, head: jax.Array) -> jax.Array | None:
    """Returns the mean row [D] of a head [P, V / P, D], which is taken off every row; no softmax changes by that.

    The rows of a trained head have much in common (SmolLM2-135M: logits of 14 +- 5), and a sum of products in float32
    loses digits to the common part. None for narrower types: what serves them rounds the rows as they are.
    """
    return None if hidden.dtype.itemsize < 4 else jnp.mean(head.astype(hidden.dtype), axis=(0, 1))


def _block(
    sizes: _Sizes, hidden: jax.Array, head: jax.Array, mean_row: jax.Array | None, targets: jax.Array, index: jax.Array
) -> _Block:
    """Computes the logits of block `index`. The last one begins earlier to be whole; what it repeats is masked."""
    parts, length, width = head.shape
    start = jnp.minimum(index * sizes.block, length - sizes.block)
    rows = jax.lax.dynamic_slice_in_dim(head, start, sizes.block, axis=1).astype(hidden.dtype).reshape(-1, width)
    rows = rows if mean_row is None else rows - mean_row
    # float32 or wider from here on: bfloat16 keeps 3 digits, and a ratio is the exponential of a small difference.
    logits = jnp.einsum("cd,vd->cv", hidden, rows, preferred_element_type=_wide(hidden)) / sizes.temperature
    place = start + jnp.arange(sizes.block)
    fresh = jnp.tile(place >= index * sizes.block, parts)
    ids = (jnp.arange(parts)[:, None] * length + place[None, :]).reshape(-1)
    chosen = (ids[None] == targets[:, None]) & fresh
    return _Block(rows, jnp.where(fresh, logits, _FAR_BELOW), chosen, start)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(sizes: _Sizes, hidden: jax.Array, head: jax.Array, targets: jax.Array) -> TokenScores:
    """Scores of C tokens from hidden states [C, D] and a head [P, V / P, D]."""
    return _scores_forward(sizes, hidden, head, targets)[0]


def _scores_forward(sizes: _Sizes, hidden: jax.Array, head: jax.Array, targets: jax.Array):
    mean_row = _mean_row(hidden, head)

    # Everything is measured from the largest logit: a difference from the normaliser would lose its last digits.
    def add(index, carry):
        top, total, below, own = carry
        one = _block(sizes, hidden, head, mean_row, targets, index)
        highest = jnp.maximum(top, jnp.max(one.logits, axis=1))
        gaps = one.logits - highest[:, None]
        shrink, weights = jnp.exp(top - highest), jnp.exp(gaps)
        return (
            highest,
            total * shrink + jnp.sum(weights, axis=1),
            shrink * (below + (top - highest) * total) + jnp.sum(weights * gaps, axis=1),
            own + jnp.sum(jnp.where(one.chosen, one.logits, 0.0), axis=1),
        )

    zeros = jnp.zeros(targets.shape, _wide(hidden))
    top, total, below, own = jax.lax.fori_loop(0, _count(sizes, head), add, (zeros + _FAR_BELOW, zeros, zeros, zeros))
    scores = TokenScores(own - top - jnp.log(total), jnp.log(total) - below / total, own >= top)
    return scores, (hidden, head, mean_row, targets, top, total, below / total)


def _scores_backward(sizes: _Sizes, kept, gradients: TokenScores):
    """Gradients by block: d logprob / d logit_j = [j chosen] - p_j; d entropy / d logit_j = -p_j (logit_j - mean)."""
    hidden, head, mean_row, targets, top, total, mean = kept
    product = functools.partial(jnp.einsum, preferred_element_type=_wide(hidden))

    def add(index, carry):
        hidden_gradient, head_gradient = carry
        one = _block(sizes, hidden, head, mean_row, targets, index)
        gaps = one.logits - top[:, None]
        weights = jnp.exp(gaps) / total[:, None]
        slope = gradients.logprobs[:, None] * (one.chosen - weights)
        if sizes.entropy_gradient:
            slope -= gradients.entropy[:, None] * weights * (gaps - mean[:, None])
        slope = (slope / sizes.temperature).astype(hidden.dtype)
        before = jax.lax.dynamic_slice_in_dim(head_gradient, one.start, sizes.block, axis=1)
        after = before + product("cv,cd->vd", slope, hidden).reshape(before.shape).astype(head.dtype)
        head_gradient = jax.lax.dynamic_update_slice_in_dim(head_gradient, after, one.start, axis=1)
        return hidden_gradient + product("cv,vd->cd", slope, one.head), head_gradient

    start = (jnp.zeros(hidden.shape, _wide(hidden)), jnp.zeros_like(head))
    hidden_gradient, head_gradient = jax.lax.fori_loop(0, _count(sizes, head), add, start)
    return hidden_gradient.astype(hidden.dtype), head_gradient, None


def _wide(hidden: jax.Array) -> jnp.dtype:
    return jnp.promote_types(hidden.dtype, jnp.float32)


def _count(sizes: _Sizes, head: jax.Array) -> int:
    return -(-head.shape[1] // sizes.block)


_scores.defvjp(_scores_forward, _scores_backward)
