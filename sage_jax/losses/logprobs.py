"""Log-probabilities of chosen tokens from hidden states, without an array of [tokens, V].

The vocabulary head is the largest array of an update: 32k tokens by 152k entries in float32 are 20 GB. Here it exists
for one chunk of tokens at a time, forwards and backwards: `jax.checkpoint` makes the backward pass compute the chunk
again. Without that, a chunked loop saves nothing, since every chunk's logits are kept for the gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


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
    chunk_size: int = 256,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Returns log softmax(hidden @ head.T / temperature)[target] and the entropy of that distribution.

    Args:
      hidden: hidden states after the final norm, any float type; hidden state i predicts target i.
      head: output embedding.
      targets: token ids in [0, V).
      temperature: the sampling temperature, so that the ratio to the engine's log-probabilities is 1 on-policy.
      chunk_size: tokens whose logits exist at one time.
      entropy_gradient: True lets gradients flow through the entropy (needed by an entropy bonus only).

    Returns:
      Scores shaped like `targets`.
    """
    shape = targets.shape
    count = targets.size
    chunk = max(1, min(chunk_size, count))
    padding = -count % chunk
    flat_hidden = jnp.pad(hidden.reshape(count, hidden.shape[-1]), ((0, padding), (0, 0)))
    flat_targets = jnp.pad(targets.reshape(count), (0, padding))
    head, wide = head.astype(hidden.dtype), jnp.promote_types(hidden.dtype, jnp.float32)

    @jax.checkpoint
    def one_chunk(inputs):
        chunk_hidden, chunk_targets = inputs
        # float32 or wider from here on: bfloat16 keeps 3 digits, and a ratio is the exponential of a small difference.
        logits = jnp.einsum("td,vd->tv", chunk_hidden, head, preferred_element_type=wide) / temperature
        normaliser = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, chunk_targets[:, None], axis=-1)[:, 0]
        inner = logits if entropy_gradient else jax.lax.stop_gradient(logits)
        inner_normaliser = normaliser if entropy_gradient else jax.lax.stop_gradient(normaliser)
        mean_logit = jnp.sum(jnp.exp(inner - inner_normaliser[:, None]) * inner, axis=-1)
        return TokenScores(chosen - normaliser, inner_normaliser - mean_logit, chosen >= jnp.max(logits, axis=-1))

    chunked = (flat_hidden.reshape(-1, chunk, hidden.shape[-1]), flat_targets.reshape(-1, chunk))
    scores = jax.lax.map(one_chunk, chunked)
    return jax.tree.map(lambda array: array.reshape(-1)[:count].reshape(shape), scores)
