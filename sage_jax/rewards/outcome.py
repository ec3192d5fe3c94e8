"""The reward of a whole episode, from how it ended."""

from __future__ import annotations

import dataclasses

from sage_jax.types import RewardResult, Status


@dataclasses.dataclass(frozen=True)
class OutcomeConfig:
    """SkillMaster's values.

    Attributes:
      scale: reward of a won episode (ALFWorld: won; WebShop: score 1). Everything else is worth 0.
      ended_by_turn: reward of an episode that a malformed or completion-claiming turn ended.
    """

    scale: float = 10.0
    ended_by_turn: float = -1.0


def outcome_reward(
    *, won: bool, status: Status, ended_by_turn: bool = False, config: OutcomeConfig = OutcomeConfig()
) -> RewardResult:
    """Returns scale * won, or no value when the episode failed through no fault of the agent.

    Args:
      won: the environment says that the goal is reached.
      status: how the episode ended; out of steps is `TRUNCATED`, a real loss.
      ended_by_turn: a turn of the agent ended the episode (`shaping.ends_episode`).
      config: the amounts.
    """
    if not status.has_reward:
        return RewardResult(None, status)
    if ended_by_turn:
        return RewardResult(config.ended_by_turn, status, {"ended_by_turn": config.ended_by_turn})
    value = config.scale if won else 0.0
    return RewardResult(value, status, {"won": value})
