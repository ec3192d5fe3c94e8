"""Stream-wise advantages: DualAdv-GRPO normalises act turns and review turns of a task group apart.

Every model turn is a sample with a group (the task), a stream ("act", "review"), and an episode. SAGE and plain GRPO
are this with one stream. Runs on the host in NumPy, like `advantages.py`, before packing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from sage_jax.errors import ConfigError
from sage_jax.losses.advantages import AdvantageKind, check_samples, finish, normalise

GroupStats = Literal["steps", "episodes"]


def stream_advantages(
    rewards: Float[np.ndarray, " N"],
    groups: Shaped[np.ndarray, " N"],
    streams: Shaped[np.ndarray, " N"],
    episodes: Shaped[np.ndarray, " N"],
    valid: Bool[np.ndarray, " N"] | None = None,
    *,
    scales: Mapping[str | int, float] | None = None,
    joint: bool = False,
    group_stats: GroupStats = "steps",
    kind: AdvantageKind = "zscore",
    eps: float = 1e-6,
) -> tuple[Float[np.ndarray, " N"], dict[str, int | np.ndarray]]:
    """Returns `scale[stream] * normalised reward`, normalised inside (group, stream).

    SkillMaster (arXiv 2605.08693), DualAdv-GRPO: A_act = z(R_env), A_skill = gamma * z(R_skill), which is
    `scales={"review": gamma}`.

    Args:
      rewards: one reward a turn; the value of an invalid turn is not read.
      groups: group label of each turn, integers or strings.
      streams: stream label of each turn.
      episodes: episode label of each turn, unique inside its group.
      valid: False for turns without a reward. They leave the statistics.
      scales: factor of each stream's advantages (gamma), 1 where not named. A named stream may be absent: a batch
        can lack review turns.
      joint: True normalises all streams of a group together (ablation). The scales still apply.
      group_stats: "steps" counts every turn in mean and deviation, so that long episodes weigh more (as SkillMaster
        was released); "episodes" gives every episode the weight of one sample in each of its streams.
      kind: formula, see `advantages.group_advantages`.
      eps: added to the standard deviation.

    Returns:
      Advantages float32, NaN for invalid turns, and the aux of `group_advantages`, where a group is a
      (group, stream) pair unless `joint`.

    Raises:
      ConfigError: `kind` or `group_stats` is unknown.
      DataError: the arrays do not have one shape [N].
      NumericsError: a valid reward is not finite.
    """
    if group_stats not in ("steps", "episodes"):
        raise ConfigError(f"group_stats={group_stats!r} is unknown; use 'steps' or 'episodes'")
    values = np.asarray(rewards, np.float64)
    valid = np.ones(values.shape, bool) if valid is None else np.asarray(valid, bool)
    labels = {"groups": np.asarray(groups), "streams": np.asarray(streams), "episodes": np.asarray(episodes)}
    check_samples(values, valid, **labels)
    group, stream, episode = (np.unique(array, return_inverse=True)[1] for array in labels.values())
    key = group if joint else _pairs(group, stream)
    kept = key[valid], stream[valid], episode[valid]
    if group_stats == "steps":
        units = np.arange(int(valid.sum()))
    else:
        units = _pairs(_pairs(group[valid], kept[1]), kept[2])
    advantages = np.full(values.shape, np.nan)
    _, dense = np.unique(kept[0], return_inverse=True)
    advantages[valid], aux = normalise(values[valid], dense, units, kind=kind, eps=eps)
    scales = scales or {}
    factors = np.array([scales.get(label.item(), 1.0) for label in labels["streams"]], np.float64)
    return finish(advantages * factors, valid, aux, groups=len(np.unique(key)))


def _pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns a dense integer label for each pair of labels."""
    if not len(first):
        return first
    return np.unique(first * (second.max() + 1) + second, return_inverse=True)[1]
