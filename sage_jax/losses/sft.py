"""Supervised fine-tuning loss, over the same gathered tokens and weights as the policy loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from sage_jax.losses.policy import token_weights


def sft_loss(
    logprobs: Float[Array, "*S"],
    mask: Num[Array, "*S"] | Bool[Array, "*S"],
    *,
    is_top: Bool[Array, "*S"] | None = None,
    weights: Float[Array, "*S"] | None = None,
    num_tokens: Float[Array, ""] | float | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Returns the cross entropy -sum_t weight_t log p(target_t), in nats.

    Args:
      logprobs: of the target tokens.
      mask: 1 for trained tokens. What stands at other places, NaN included, has no influence.
      is_top: whether the model ranks the target first, for the accuracy.
      weights: from `policy.token_weights` over the whole batch; default: token mean over this mask.
      num_tokens: trained tokens of the whole batch, the denominator of aux; default: those of this mask.

    Returns:
      The loss, and aux: means over trained tokens whatever the weights, of `loss` and, with `is_top`, of `accuracy`.
      Aux of micro-batches add up.
    """
    trained = jnp.asarray(mask) > 0
    weights = token_weights(trained) if weights is None else weights
    num_tokens = jnp.sum(trained) if num_tokens is None else num_tokens
    losses = -jnp.where(trained, logprobs.astype(jnp.promote_types(logprobs.dtype, jnp.float32)), 0.0)
    denominator = jnp.maximum(jnp.asarray(num_tokens, jnp.float32), 1.0)
    aux = {"loss": jax.lax.stop_gradient(jnp.sum(losses)) / denominator}
    if is_top is not None:
        aux["accuracy"] = jnp.sum(trained & is_top) / denominator
    return jnp.sum(jnp.where(trained, weights, 0.0) * losses), aux
