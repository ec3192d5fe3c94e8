"""Group advantages: a sample's reward against the other samples of its group.

Called by the trainer between rewards and packing, on the host, on a few hundred numbers of varying count. NumPy in
float64 is the right tool there: no compilation for each new count, no float32 rounding of small differences.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from sage_jax.errors import ConfigError, DataError, NumericsError

AdvantageKind = Literal["mean", "zscore", "leave_one_out"]
KINDS: tuple[str, ...] = ("mean", "zscore", "leave_one_out")

# Rewards that differ by less than this share of their size differ by rounding only: 0.1 + 0.2 against 0.3.
_ROUNDING = 1e-12


def group_advantages(
    rewards: Float[np.ndarray, " N"],
    groups: Shaped[np.ndarray, " N"],
    valid: Bool[np.ndarray, " N"] | None = None,
    *,
    kind: AdvantageKind = "zscore",
    eps: float = 1e-6,
) -> tuple[Float[np.ndarray, " N"], dict[str, int | np.ndarray]]:
    """Returns each sample's advantage inside its group.

    With n valid samples in the group, mean m and standard deviation s (ddof 1):
      mean           r - m                          SAGE
      zscore         (r - m) / (s + eps)            SkillMaster; at n = 1, m = 0 and s = 1
      leave_one_out  r - mean of the other n - 1    LOOP; at n = 1, 0

    Args:
      rewards: one reward a sample; the value of an invalid sample is not read.
      groups: group label of each sample, integers or strings.
      valid: False for samples without a reward (an infrastructure failure). They leave the statistics.
      kind: the formula.
      eps: added to the standard deviation of `zscore`.

    Returns:
      Advantages, float32; NaN for invalid samples, so that one that slips into a loss stops the run instead of
      teaching zero. And aux: `groups`, `groups_without_spread` (two or more equal rewards: all advantages are 0),
      `groups_of_one`, `groups_empty` (no valid sample), `samples_invalid`, and `has_signal` [N], False for invalid
      samples and for those whose whole group has advantage 0.

    Raises:
      ConfigError: `kind` is unknown.
      DataError: the arrays do not have one shape [N].
      NumericsError: a valid reward is not finite.
    """
    values = np.asarray(rewards, np.float64)
    labels = np.asarray(groups)
    valid = np.ones(values.shape, bool) if valid is None else np.asarray(valid, bool)
    check_samples(values, valid, groups=labels)
    group_count = len(np.unique(labels))
    _, keys = np.unique(labels[valid], return_inverse=True)
    advantages = np.full(values.shape, np.nan)
    advantages[valid], aux = normalise(values[valid], keys, np.arange(len(keys)), kind=kind, eps=eps)
    return finish(advantages, valid, aux, groups=group_count)


def normalise(
    values: Float[np.ndarray, " N"],
    keys: Shaped[np.ndarray, " N"],
    units: Shaped[np.ndarray, " N"],
    *,
    kind: AdvantageKind,
    eps: float,
) -> tuple[Float[np.ndarray, " N"], dict[str, int | np.ndarray]]:
    """Returns values normalised inside their key, every unit of a key weighing the same.

    With one unit a sample these are the formulas of `group_advantages`. When several samples form a unit (the steps
    of one episode), each weighs 1 / (samples of its unit), n is the number of units, and
    s^2 = sum_units mean_in_unit (r - m)^2 / (n - 1): the statistics of one sample an episode when the steps of an
    episode share their reward, and still bounded when they do not.

    Args:
      values: float64 values.
      keys: integer key of each value, in [0, number of keys).
      units: integer unit of each value, in [0, number of units); all values of a unit have the same key.
      kind: as in `group_advantages`.
      eps: as in `group_advantages`.

    Returns:
      Normalised values in float64 and the counts of `group_advantages`.
    """
    if kind not in KINDS:
        raise ConfigError(f"advantage kind={kind!r} is unknown; use one of {', '.join(KINDS)}")
    if not len(values):
        return values, {"has_signal": np.zeros(0, bool), "filled": 0, "groups_without_spread": 0, "groups_of_one": 0}
    weight = 1.0 / np.bincount(units)[units]
    count = np.rint(np.bincount(keys, weight))  # units in each key
    total = np.bincount(keys, weight * values)
    mean = total / np.maximum(count, 1)
    spread = _has_spread(values, keys, len(count))
    alone = count == 1
    if kind == "mean":
        result = values - mean[keys]
    elif kind == "leave_one_out":
        own = np.bincount(units, weight * values)[units]
        others = (total[keys] - own) / np.maximum(count - 1, 1)[keys]
        # Unspecified: a lone sample has no other to compare with; it gets no signal rather than its raw reward.
        result = np.where(alone[keys], 0.0, values - others)
    else:
        squares = np.bincount(keys, weight * np.square(values - mean[keys]))
        std = np.where(alone, 1.0, np.sqrt(squares / np.maximum(count - 1, 1)))
        result = (values - np.where(alone, 0.0, mean)[keys]) / (std[keys] + eps)
    flat = ~spread & ~alone
    result = np.where(flat[keys], 0.0, result)
    signal = np.zeros(len(count), bool)
    np.logical_or.at(signal, keys, result != 0)
    return result, {
        "has_signal": signal[keys],
        "filled": len(count),
        "groups_without_spread": int(flat.sum()),
        "groups_of_one": int(alone.sum()),
    }


def check_samples(values: np.ndarray, valid: np.ndarray, **labels: np.ndarray) -> None:
    """Raises DataError for arrays of different shape, NumericsError for a valid value that is not finite."""
    for name, array in {"valid": valid, **labels}.items():
        if array.shape != values.shape or values.ndim != 1:
            raise DataError(f"rewards have shape {values.shape}, {name} {array.shape}; both must be one [N]")
    wrong = np.flatnonzero(valid & ~np.isfinite(values))
    if len(wrong):
        raise NumericsError(
            f"reward {values[wrong[0]]} of sample {wrong[0]} is not finite ({len(wrong)} such); "
            "mark a sample without a reward as invalid instead"
        )


def finish(
    advantages: np.ndarray, valid: np.ndarray, aux: dict[str, int | np.ndarray], *, groups: int
) -> tuple[np.ndarray, dict[str, int | np.ndarray]]:
    """Returns float32 advantages and aux completed with what the invalid samples add to it."""
    has_signal = np.zeros(valid.shape, bool)
    has_signal[valid] = aux["has_signal"]
    return advantages.astype(np.float32), {
        "groups": groups,
        "groups_without_spread": aux["groups_without_spread"],
        "groups_of_one": aux["groups_of_one"],
        "groups_empty": groups - aux["filled"],
        "samples_invalid": int((~valid).sum()),
        "has_signal": has_signal,
    }


def _has_spread(values: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Returns for each key whether its values differ by more than rounding."""
    low = np.full(count, np.inf)
    high = np.full(count, -np.inf)
    np.minimum.at(low, keys, values)
    np.maximum.at(high, keys, values)
    return high - low > _ROUNDING * np.maximum(np.abs(low), np.abs(high))
