"""The reward of a whole episode, from how it ended."""

from __future__ import annotations

import dataclasses

from sage_jax.types import RewardResult, Status


@dataclasses.dataclass(frozen=True)
class OutcomeConfig:
    """SkillMaster's values.

    Attributes:
      kind: "success" pays `scale` for a won episode (ALFWorld: won; WebShop: score 1) and nothing for any other;
        "score" pays `scale` times the environment's own score, also to an episode that was not won.
      scale: the amount.
      ended_by_turn: reward of an episode that a malformed or completion-claiming turn ended.
    """

    kind: str = "success"
    scale: float = 10.0
    ended_by_turn: float = -1.0


def outcome_reward(
    *,
    won: bool,
    status: Status,
    score: float = 0.0,
    ended_by_turn: bool = False,
    config: OutcomeConfig = OutcomeConfig(),  # noqa: B008  (frozen)
) -> RewardResult:
    """Returns scale * won or scale * score, or no value when the episode failed through no fault of the agent.

    Args:
      won: the environment says that the goal is reached.
      score: sum of the environment's rewards, in [0, 1].
      status: how the episode ended; out of steps is `TRUNCATED`, a real loss.
      ended_by_turn: a turn of the agent ended the episode (`shaping.ends_episode`).
      config: the amounts.
    """
    if not status.has_reward:
        return RewardResult(None, status)
    if ended_by_turn:
        return RewardResult(config.ended_by_turn, status, {"ended_by_turn": config.ended_by_turn})
    if config.kind == "score":
        value = config.scale * score
        return RewardResult(value, status, {"score": value})
    value = config.scale if won else 0.0
    return RewardResult(value, status, {"won": value})
