"""Bi-level advantages of generated skills (Skill-R1, arXiv 2605.09359): within a generation, and against the last one.

One batch holds B instances x G generations x M sibling skills x K rollouts of the task LLM under each skill. What is
trained is the skill, so the K rollouts of one skill share one ratio, and all that the loss needs of them are sums.
NumPy in float64 on the host, as for all advantages.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from sage_jax.errors import ConfigError, DataError, NumericsError

GenerationMode = Literal["literal", "sibling"]
MODES: tuple[str, ...] = ("literal", "sibling")


@dataclasses.dataclass(frozen=True)
class GenerationAdvantages:
    """Advantages of B x G x M skills. Float64; NaN where a skill has no valid rollout.

    Attributes:
      intra: [B, G, M, K], r - rbar of each rollout against the rollouts of its own skill; NaN for invalid ones.
      inter: [B, G, M], rbar minus the mean reward of the skill it was written after; 0 in the first generation.
      total: [B, G, M], what multiplies the skill's ratio inside the clip window.
      positive: [B, G, M], sum of the positive ones among the rollouts' advantages; `total - positive` is the sum of
        the negative ones. Outside the clip window the two sums are clipped differently.
      means: [B, G, M], rbar, the mean reward of the skill's valid rollouts.
    """

    intra: Float[np.ndarray, "B G M K"]
    inter: Float[np.ndarray, "B G M"]
    total: Float[np.ndarray, "B G M"]
    positive: Float[np.ndarray, "B G M"]
    means: Float[np.ndarray, "B G M"]


def generation_advantages(
    rewards: Float[np.ndarray, "B G M K"],
    valid: Bool[np.ndarray, "B G M K"] | None = None,
    kept: Int[np.ndarray, "B G"] | None = None,
    *,
    mode: GenerationMode = "sibling",
    inter_coef: float = 1.0,
) -> GenerationAdvantages:
    """Returns the advantages of generated skills.

    With rbar the mean reward of a skill's rollouts and p(g) the sibling of generation g that was kept, that is the one
    whose rollouts the writer of generation g + 1 has seen:
      A_intra(i, g, m) = r(i, g, m) - rbar(g, m)
      A_inter(g, m)    = rbar(g, m) - rbar(g - 1, p(g - 1));    A_inter(1, m) = 0
      literal   total(g) = sum_i A_intra(i, g) + lambda A_inter(g) = K lambda A_inter(g)                (M = 1)
      sibling   total(g, m) = rbar(g, m) - mean_m' rbar(g, m') + lambda A_inter(g, m)

    `literal` is the paper's formula. Its A_intra sums to zero over the K rollouts that share a ratio, so it moves
    nothing inside the clip window: lambda = 0 cannot learn, and the first generation gets no signal at all.

    # Deviation: `sibling` (our default) compares M skills written after the same history, one sample a skill.
    # Unspecified: a generation after one without any valid rollout has nothing to be compared with; A_inter = 0.

    Args:
      rewards: of each rollout; the value of an invalid one is not read.
      valid: False for rollouts without a reward, and for generations that an instance does not have. They leave
        every mean.
      kept: sibling of each generation that the next one was written after; default 0.
      mode: "literal" or "sibling".
      inter_coef: lambda, weight of the comparison between generations.

    Raises:
      ConfigError: unknown mode; `literal` with M > 1; a negative lambda.
      DataError: the shapes do not fit, or `kept` names no sibling.
      NumericsError: a valid reward is not finite.
    """
    values = np.asarray(rewards, np.float64)
    valid = np.ones(values.shape, bool) if valid is None else np.asarray(valid, bool)
    kept = np.zeros(values.shape[:2], np.int64) if kept is None else np.asarray(kept)
    _check(values, valid, kept, mode, inter_coef)
    values = np.where(valid, values, 0.0)
    counts = valid.sum(axis=-1)
    alive = counts > 0
    # Sorted sums, so that the order of rollouts cannot change a digit.
    means = np.where(alive, np.sort(values, axis=-1).sum(axis=-1) / np.maximum(counts, 1), 0.0)
    intra = np.where(valid, values - means[..., None], np.nan)
    inter = _inter(means, alive, kept)
    if mode == "literal":
        sums = np.where(valid, intra + inter_coef * inter[..., None], 0.0)
        positive = np.sort(np.maximum(sums, 0.0), axis=-1).sum(axis=-1)
        total = counts * inter_coef * inter  # the sum of A_intra is zero by algebra; rounding shall not say otherwise
    else:
        siblings = np.maximum(alive.sum(axis=-1, keepdims=True), 1)
        centre = np.sort(np.where(alive, means, 0.0), axis=-1).sum(axis=-1, keepdims=True) / siblings
        total = means - centre + inter_coef * inter
        positive = np.maximum(total, 0.0)
    total, positive, inter, means = (np.where(alive, array, np.nan) for array in (total, positive, inter, means))
    return GenerationAdvantages(intra=intra, inter=inter, total=total, positive=positive, means=means)


def _inter(means: np.ndarray, alive: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Returns A_inter [B, G, M]."""
    inter = np.zeros_like(means)
    parents = np.take_along_axis(means, kept[..., None], axis=-1)[:, :-1]
    known = alive[:, 1:] & np.take_along_axis(alive, kept[..., None], axis=-1)[:, :-1]
    inter[:, 1:] = np.where(known, means[:, 1:] - parents, 0.0)
    return inter


def _check(values: np.ndarray, valid: np.ndarray, kept: np.ndarray, mode: str, inter_coef: float) -> None:
    if mode not in MODES:
        raise ConfigError(f"generation mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    if values.ndim != 4 or valid.shape != values.shape or kept.shape != values.shape[:2]:
        raise DataError(
            f"rewards have shape {values.shape}, valid {valid.shape}, kept {kept.shape}; "
            "expected [B, G, M, K], the same, and [B, G]"
        )
    if mode == "literal" and values.shape[2] != 1:
        raise ConfigError(f"mode='literal' with {values.shape[2]} siblings: the formula has one skill a generation")
    if not inter_coef >= 0:
        raise ConfigError(f"inter_coef={inter_coef} must be 0 or more")
    if kept.size and not (kept.min() >= 0 and kept.max() < values.shape[2]):
        raise DataError(f"kept names sibling {kept.max() if kept.min() >= 0 else kept.min()} of {values.shape[2]}")
    wrong = np.argwhere(valid & ~np.isfinite(values))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise NumericsError(
            f"reward {values[place]} at {place} (instance, generation, sibling, rollout) is not finite; "
            "mark a rollout without a reward as invalid instead"
        )
