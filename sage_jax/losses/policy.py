"""The policy loss: clipped surrogate, KL to a reference, entropy, and how tokens are averaged.

Every function takes arrays of one shape: [N, T] packed rows, or [C] gathered trained tokens. The batch average lives
in per-token `weights`, so that a sum over micro-batches is exactly the loss of the whole batch. All arithmetic is in
float32 whatever the parameters are: a ratio is the exponential of a small difference of log-probabilities.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from sage_jax.errors import ConfigError

Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]
KlKind = Literal["k1", "k2", "k3"]
RatioLevel = Literal["token", "sequence"]
AGGREGATIONS: tuple[str, ...] = ("token_mean", "sequence_mean", "constant_length")
KL_KINDS: tuple[str, ...] = ("k1", "k2", "k3")
RATIO_LEVELS: tuple[str, ...] = ("token", "sequence")

# exp(20) = 5e8 lies far outside every clip range and far inside float32, so inf * 0 cannot arise in a gradient.
MAX_LOG_RATIO = 20.0


def token_weights(
    mask: Num[Array, "*S"] | Bool[Array, "*S"],
    *,
    aggregation: Aggregation = "token_mean",
    sequence_ids: Int[Array, "*S"] | None = None,
    length: int | None = None,
    num_sequences: int | None = None,
) -> Float[Array, "*S"]:
    """Returns the weight of each token in the loss, 0 where `mask` is 0.

      token_mean       1 / (trained tokens)                                     DAPO, SkillMaster
      sequence_mean    1 / (trained tokens of its sequence) / (sequences)       GRPO, SAGE
      constant_length  1 / length / (sequences)                                 Dr. GRPO

    Sequences without a trained token are not counted.

    Args:
      mask: 1 for trained tokens.
      aggregation: one of the above.
      sequence_ids: integers in [0, num_sequences), needed by the last two; ignored where `mask` is 0.
      length: the constant of constant_length, in tokens.
      num_sequences: a static upper bound of the ids plus one; default the number of elements of `mask`.

    Raises:
      ConfigError: an unknown aggregation, or one whose argument is missing.
    """
    if aggregation not in AGGREGATIONS:
        raise ConfigError(f"aggregation={aggregation!r} is unknown; use one of {', '.join(AGGREGATIONS)}")
    mask = jnp.asarray(mask).astype(jnp.float32)
    if aggregation == "token_mean":
        return mask / jnp.maximum(mask.sum(), 1.0)
    if sequence_ids is None:
        raise ConfigError(f"aggregation={aggregation!r} needs sequence_ids")
    flat_ids = jnp.where(mask > 0, sequence_ids, 0).reshape(-1)
    counts = jax.ops.segment_sum(mask.reshape(-1), flat_ids, num_segments=num_sequences or mask.size)
    sequences = jnp.maximum(jnp.sum(counts > 0), 1)
    if aggregation == "sequence_mean":
        own = counts[flat_ids].reshape(mask.shape)
        return mask / jnp.maximum(own, 1.0) / sequences
    if not length or length < 1:
        raise ConfigError(f"aggregation='constant_length' needs length >= 1 token, got {length!r}")
    return mask / (length * sequences)


def kl_estimate(
    logprobs: Float[Array, "*S"], ref_logprobs: Float[Array, "*S"], *, kind: KlKind = "k3"
) -> Float[Array, "*S"]:
    """Returns a per-token estimate of KL(policy || reference) from samples of the policy.

    With d = logprobs - ref_logprobs (Schulman, "Approximating KL divergence"):
      k1 = d                  unbiased, can be negative; as a loss its gradient is zero in expectation
      k2 = d^2 / 2            biased; as a loss its gradient is that of the true KL in expectation
      k3 = exp(-d) - 1 + d    unbiased, never negative; used by GRPO and SkillMaster

    Raises:
      ConfigError: `kind` is unknown.
    """
    difference = _wide(logprobs) - _wide(ref_logprobs)
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * jnp.square(difference)
    if kind == "k3":
        # expm1 keeps the digits that exp(-d) - 1 loses for policies close to the reference.
        return jnp.expm1(jnp.clip(-difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)) + difference
    raise ConfigError(f"kl_kind={kind!r} is unknown; use one of {', '.join(KL_KINDS)}")


def clipped_surrogate(
    logprobs: Float[Array, "*S"],
    old_logprobs: Float[Array, "*S"],
    advantages: Float[Array, "*S"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Float[Array, "*S"], Float[Array, "*S"], dict[str, Bool[Array, "*S"]]]:
    """Returns the clipped loss of each token (to be minimised), its ratio, and which clip, if any, took its gradient.

    r = exp(logprobs - old_logprobs); loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))  (PPO, eq. 7), and
    for A < 0 at most -A * dual_clip (dual-clip PPO, arXiv 1912.09729), which bounds the push away from a token that
    the new policy finds much likelier than the old one did. The third result has the keys low, high and dual.
    """
    log_ratio = jnp.clip(logprobs - old_logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = jnp.exp(log_ratio)
    unclipped = -advantages * ratio
    losses = jnp.maximum(unclipped, -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high))
    clips = {
        "low": (advantages < 0) & (ratio < 1.0 - clip_low),
        "high": (advantages > 0) & (ratio > 1.0 + clip_high),
        "dual": jnp.zeros(ratio.shape, bool),
    }
    if dual_clip is not None:
        clips["dual"] = (advantages < 0) & (ratio > dual_clip)
        losses = jnp.where(clips["dual"], -advantages * dual_clip, losses)
    return losses, ratio, clips


def policy_loss(
    logprobs: Float[Array, "*S"],
    advantages: Float[Array, "*S"],
    mask: Num[Array, "*S"] | Bool[Array, "*S"],
    *,
    old_logprobs: Float[Array, "*S"] | None = None,
    ref_logprobs: Float[Array, "*S"] | None = None,
    engine_logprobs: Float[Array, "*S"] | None = None,
    entropy: Float[Array, "*S"] | None = None,
    weights: Float[Array, "*S"] | None = None,
    num_tokens: Float[Array, ""] | float | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    kl_coef: float = 0.0,
    kl_kind: KlKind = "k3",
    entropy_coef: float = 0.0,
    importance_cap: float | None = None,
    ratio_level: RatioLevel = "token",
    importance_level: RatioLevel | None = None,
    sequence_ids: Int[Array, "*S"] | None = None,
    num_sequences: int | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Returns sum_t weight_t * (c_t surrogate_t + kl_coef KL_t - entropy_coef H_t) and what it was made of.

    c_t = min(exp(old - engine), importance_cap) without gradient, or 1: the truncated importance weight that corrects
    for an engine that samples with slightly other numerics than the trainer's.

    With ratio_level "sequence" (Skill-R1) every token of a sequence has the ratio of the whole sequence,
    exp(sum_t logp_t - old_t); with `sequence_mean` weights each sequence then counts once. With importance_level
    "sequence" every token of a sequence has c = min(exp(sum_t old_t - engine_t), importance_cap): the ratio of the
    whole output, where "token" leaves out that earlier tokens, too, came from the engine (Yao et al., "Your Efficient
    RL Framework Secretly Brings You Off-Policy RL Training"; Liu et al., "When Speed Kills Stability").

    Args:
      logprobs: of the target tokens under the policy.
      advantages: of the target tokens.
      mask: 1 for trained tokens. What stands at other places, NaN included, has no influence.
      old_logprobs: under the policy that sampled; None means strictly on-policy, old = stop_gradient(logprobs).
      ref_logprobs: under the reference; None leaves the KL out.
      engine_logprobs: as the engine reported them; used by `importance_cap` and for metrics.
      entropy: of each token's distribution; None leaves the bonus out.
      weights: from `token_weights` over the whole batch; default: token mean over this mask.
      num_tokens: trained tokens of the whole batch, the denominator of the metrics; default: those of this mask.
      clip_low: the ratio is clipped below at 1 - clip_low.
      clip_high: the ratio is clipped above at 1 + clip_high.
      dual_clip: bound c > 1 of the loss of negative advantages, in units of |A|.
      kl_coef: weight of the KL estimate.
      kl_kind: see `kl_estimate`.
      entropy_coef: weight of the entropy bonus.
      importance_cap: upper bound of the truncated importance weight; None switches it off.
      ratio_level: "token", or "sequence" for one ratio a sequence.
      importance_level: "token", or "sequence" for one importance weight a sequence; None is as ratio_level.
      sequence_ids: integers in [0, num_sequences), needed by a level "sequence"; a sequence must be here whole.
      num_sequences: a static upper bound of the ids plus one; default the number of elements of `mask`.

    Returns:
      The loss and aux scalars. Aux of micro-batches combine by `max` for names ending in "_max", else by sum. With
      engine_logprobs and g = old - engine: engine_gap, the mean of |g|, engine_gap_max, the largest, and engine_kl,
      the mean of exp(g) - 1 - g, which estimates KL(engine || policy that sampled) from the engine's own tokens.
    """
    trained = jnp.asarray(mask) > 0
    weights = token_weights(trained) if weights is None else weights
    num_tokens = jnp.sum(trained) if num_tokens is None else num_tokens
    denominator = jnp.maximum(jnp.asarray(num_tokens, jnp.float32), 1.0)

    def clean(array):
        return jnp.where(trained, _wide(array), 0.0)

    def mean(array):
        return jnp.sum(jnp.where(trained, array, 0.0)) / denominator

    def pool(difference, level):
        return difference if level == "token" else _sum_sequences(difference, trained, sequence_ids, num_sequences)

    importance_level = importance_level or ratio_level
    for name, level in {"ratio_level": ratio_level, "importance_level": importance_level}.items():
        if level not in RATIO_LEVELS or (level == "sequence" and sequence_ids is None):
            raise ConfigError(f"{name}={level!r}: use 'token', or 'sequence' together with sequence_ids")
    logprobs, advantages = clean(logprobs), clean(advantages)
    old_logprobs = jax.lax.stop_gradient(logprobs if old_logprobs is None else clean(old_logprobs))
    surrogate, ratio, clips = clipped_surrogate(
        pool(logprobs - old_logprobs, ratio_level),
        jnp.zeros_like(logprobs),
        advantages,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    aux = {f"clip_{name}": mean(clipped) for name, clipped in clips.items()}
    aux |= {"ratio": mean(ratio), "ratio_max": jnp.max(jnp.where(trained, ratio, 0.0))}
    if engine_logprobs is not None:
        difference = jax.lax.stop_gradient(old_logprobs - clean(engine_logprobs))
        aux["engine_gap"] = mean(jnp.abs(difference))
        aux["engine_gap_max"] = jnp.max(jnp.abs(difference))
        # The engine drew the tokens: KL(engine || trainer).
        aux["engine_kl"] = mean(kl_estimate(clean(engine_logprobs), old_logprobs, kind="k3"))
        if importance_cap is not None:
            log_weight = jnp.clip(pool(difference, importance_level), -MAX_LOG_RATIO, MAX_LOG_RATIO)
            correction = jnp.minimum(jnp.exp(log_weight), importance_cap)
            surrogate = surrogate * correction
            aux["importance_weight"] = mean(correction)
    elif importance_cap is not None:
        raise ConfigError(f"importance_cap={importance_cap} needs engine_logprobs")
    weights = jnp.where(trained, weights, 0.0)
    aux["policy"] = loss = jnp.sum(weights * surrogate)
    if ref_logprobs is not None:
        kl = kl_estimate(logprobs, jax.lax.stop_gradient(clean(ref_logprobs)), kind=kl_kind)
        loss = loss + kl_coef * jnp.sum(weights * kl)
        aux["kl"] = mean(kl)
    if entropy is not None:
        entropy = clean(entropy)
        loss = loss - entropy_coef * jnp.sum(weights * entropy)
        aux["entropy"] = mean(entropy)
    return loss, jax.tree.map(jax.lax.stop_gradient, aux)


def _sum_sequences(
    values: Float[Array, "*S"], trained: Bool[Array, "*S"], sequence_ids: Int[Array, "*S"], num_sequences: int | None
) -> Float[Array, "*S"]:
    """Returns for each trained token the sum of `values` over the trained tokens of its sequence."""
    ids = jnp.where(trained, sequence_ids, 0).reshape(-1)
    sums = jax.ops.segment_sum(values.reshape(-1), ids, num_segments=num_sequences or trained.size)
    return jnp.where(trained, sums[ids].reshape(trained.shape), 0.0)


def _wide(array: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Returns the array in float32, or as it is when it is wider."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
