"""SAGE's skill-integrated reward over a chain of tasks (arXiv 2512.17102, its equations for R1 and R2).

A rollout plays the tasks of a chain in order with a library of its own. With r_i the verified outcome of task i:

    R1 = r1 + 1[r1 = 1] 1[r2 = 1] 1[task 2 used a skill made in task 1]
    R2 = r2 + 1[r2 = 1] 1[task 2 used a skill made in task 1]

Advantages are normalised among the rollouts of one chain at one position, never across (`chain_group`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sage_jax.errors import ConfigError, RewardError
from sage_jax.types import RewardResult, Status

KINDS = ("skill", "outcome", "chain")
_SOLVED = 1.0


@dataclasses.dataclass(frozen=True)
class SageRewardConfig:
    """The paper's values.

    Attributes:
      kind: "skill", the equations above; "outcome", R = r; "chain", every task of a chain gets the chain's mean r.
      bonus: what a skill that was made and used pays to either side.
      no_code: reward of a task whose last turn held no code, which ends it.
      partial: r is the share of passed tests instead of 0 or 1; a bonus still needs all of them.
    """

    kind: str = "skill"
    bonus: float = 1.0
    no_code: float = -1.0
    partial: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"the SAGE reward is {self.kind!r}, expected one of {', '.join(KINDS)}")


@dataclasses.dataclass(frozen=True)
class TaskOutcome:
    """How one task of a chain ended.

    Attributes:
      won: all tests passed.
      score: share of tests passed, read only with `partial`.
      status: how the episode ended; without a reward status nothing is known of the task.
      no_code: a turn without code ended it.
      used: positions in the chain whose skills this task used, by whichever credit the run gives.
    """

    won: bool
    score: float = 0.0
    status: Status = Status.OK
    no_code: bool = False
    used: frozenset[int] = frozenset()


def chain_group(chain: str, position: int) -> str:
    """Returns the group of a chain's task: its statistics are those of the n rollouts of the same chain and place."""
    return f"{chain}#{position}"


def chain_rewards(outcomes: Sequence[TaskOutcome], config: SageRewardConfig | None = None) -> tuple[RewardResult, ...]:
    """Returns the reward of each task of one rollout of a chain.

    In chains of three and more, a task is paid once for having made a skill that any later solved task used, and once
    for having used one of any earlier task. # Unspecified: the paper has equations for two tasks only.

    A bonus that hangs on a task which failed through no fault of the agent cannot be known; where it could be due, the
    earlier task has no reward either, because 0 would teach that making the skill did not pay.

    Args:
      outcomes: in the chain's order.
      config: the amounts.

    Raises:
      RewardError: a task claims a skill of itself or of a later task.
    """
    config = config or SageRewardConfig()
    for position, outcome in enumerate(outcomes):
        if any(not 0 <= source < position for source in outcome.used):
            raise RewardError(f"task {position} of a chain claims skills of tasks {sorted(outcome.used)}")
    if config.kind == "chain":
        return _chain_mean(outcomes, config)
    return tuple(_reward(outcomes, position, config) for position in range(len(outcomes)))


def _reward(outcomes: Sequence[TaskOutcome], position: int, config: SageRewardConfig) -> RewardResult:
    outcome = outcomes[position]
    if not outcome.status.has_reward:
        return RewardResult(None, outcome.status)
    value = _outcome(outcome, config)
    parts = {"no_code" if outcome.no_code else "outcome": value}
    if config.kind == "skill" and _solved(outcome):
        later = outcomes[position + 1 :]
        if any(_solved(other) and position in other.used for other in later):
            parts["made"] = config.bonus
        else:
            lost = [other for other in later if not other.status.has_reward]
            if lost:
                return RewardResult(None, lost[0].status)
        if outcome.used:
            parts["used"] = config.bonus
    return RewardResult(sum(parts.values()), outcome.status, parts)


def _chain_mean(outcomes: Sequence[TaskOutcome], config: SageRewardConfig) -> tuple[RewardResult, ...]:
    """# Unspecified: the paper's ablation has one reward a chain, without its formula; here, the mean of r."""
    lost = [outcome for outcome in outcomes if not outcome.status.has_reward]
    if lost:
        return tuple(RewardResult(None, lost[0].status) for _ in outcomes)
    mean = sum(_outcome(outcome, config) for outcome in outcomes) / max(len(outcomes), 1)
    return tuple(RewardResult(mean, outcome.status, {"chain": mean}) for outcome in outcomes)


def _solved(outcome: TaskOutcome) -> bool:
    return outcome.won and not outcome.no_code and outcome.status.has_reward


def _outcome(outcome: TaskOutcome, config: SageRewardConfig) -> float:
    if outcome.no_code:
        return config.no_code
    if outcome.won:
        return _SOLVED
    return outcome.score if config.partial else 0.0
