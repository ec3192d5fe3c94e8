"""Paired credit: rollouts that were shown skills against rollouts of the same task that were shown none (D2Skill).

Runs on the host in NumPy, before advantages are computed.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from sage_jax.errors import ConfigError
from sage_jax.losses.advantages import check_samples

PairedTo = Literal["skilled", "all"]
RECEIVERS: tuple[str, ...] = ("skilled", "all")


def paired_credit(
    outcomes: Float[np.ndarray, " N"],
    groups: Shaped[np.ndarray, " N"],
    skilled: Bool[np.ndarray, " N"],
    valid: Bool[np.ndarray, " N"] | None = None,
    *,
    coef: float = 1.0,
    to: PairedTo = "skilled",
) -> tuple[Float[np.ndarray, " N"], dict[str, float]]:
    """Returns what is added to each rollout's reward: coef * (outcome - mean outcome of its group without skills).

    D2Skill (arXiv 2603.28716), the hindsight reward of rollouts that were shown skills: positive when skills won what
    the same policy loses without them. Given to "all", as in code built on the authors' release, it moves every member
    of a group by one constant and stretches the outcome, which a z-score takes out again but for its eps: nothing is
    learned from it. Given to those with skills alone it tells the two halves apart.

    Args:
      outcomes: of each rollout, e.g. 1 for success.
      groups: task group of each rollout.
      skilled: whether it was shown skills.
      valid: False for rollouts without an outcome. They get 0 and leave the means.
      coef: weight.
      to: "skilled", or "all".

    Returns:
      The credit, float64, 0 in groups that lack one of the two kinds; and aux: `gap`, the mean over the other groups
      of (mean with skills - mean without), which is their skills' utility, and `groups_paired`, how many those are.

    Raises:
      ConfigError: `to` is unknown.
      DataError: the arrays do not have one shape [N].
      NumericsError: a valid outcome is not finite.
    """
    if to not in RECEIVERS:
        raise ConfigError(f"paired_to={to!r} is unknown; use one of {', '.join(RECEIVERS)}")
    values = np.asarray(outcomes, np.float64)
    known = np.ones(values.shape, bool) if valid is None else np.asarray(valid, bool)
    labels, skilled = np.asarray(groups), np.asarray(skilled, bool)
    check_samples(values, known, groups=labels, skilled=skilled)
    credit, gaps = np.zeros(values.shape), []
    for label in np.unique(labels):
        members = known & (labels == label)
        with_skills, without = members & skilled, members & ~skilled
        # Deviation: a group that lacks one of the two kinds has no gap, rather than one against zero.
        if with_skills.any() and without.any():
            baseline = values[without].mean()
            gaps.append(values[with_skills].mean() - baseline)
            paid = with_skills if to == "skilled" else members
            credit[paid] = coef * (values[paid] - baseline)
    return credit, {"gap": float(np.mean(gaps)) if gaps else 0.0, "groups_paired": float(len(gaps))}
