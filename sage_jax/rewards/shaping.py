"""Prices on the form of single turns, and the reward of a review turn.

The amounts are those of SkillMaster's training scripts (arXiv 2605.08693, released code).
Unspecified: whether they add up. Here the faults of form of one turn add up, while the outcome of the tool call is
one part: an environment action as tool name stands in place of "unknown tool", a placeholder in place of "invalid
arguments", a duplicate in place of "valid".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from sage_jax.skills import EditKind, EditOutcome
from sage_jax.types import RewardResult, Status


@dataclasses.dataclass(frozen=True)
class ActShaping:
    """Added to an act turn's reward for each flag of `agents.parsing.Flag` that the turn has.

    `end_episode` names the flags that end the episode at once (`outcome.OutcomeConfig.ended_by_turn`).
    Unspecified: what makes a turn malformed; here, that it holds no action.
    """

    not_admissible: float = -0.5
    truncated: float = -2.0
    no_action: float = -2.0
    no_think: float = -1.0
    empty: float = -2.0
    repetition: float = -0.5
    end_episode: tuple[str, ...] = ("empty", "no_action", "claims_completion")


@dataclasses.dataclass(frozen=True)
class ReviewShaping:
    """Added to a review turn's reward: one amount for the call's outcome, then the faults of form.

    Unspecified: `not_found` has no published price; it is an argument that fits nothing.
    """

    valid: float = 0.1
    duplicate: float = -0.5
    not_found: float = -1.0
    parse_error: float = -2.0
    invalid_arguments: float = -1.0
    unknown_tool: float = -1.5
    env_action: float = -3.0
    placeholder: float = -1.5
    no_think: float = -0.5
    no_tool_tags: float = -0.5


ACT_SHAPING = ActShaping()
REVIEW_SHAPING = ReviewShaping()
_ACT_PRICED = ("not_admissible", "truncated", "no_action", "no_think", "empty", "repetition")
_REVIEW_PRICED = ("no_think", "no_tool_tags")


def act_reward(flags: Collection[str], *, status: Status = Status.OK, config: ActShaping = ACT_SHAPING) -> RewardResult:
    """Returns the summed prices of an act turn's flags; 0 for a clean turn.

    Args:
      flags: `ActParse.flags`.
      status: how the turn itself went; an infrastructure failure has no reward.
      config: the amounts.
    """
    if not status.has_reward:
        return RewardResult(None, status)
    parts = {name: getattr(config, name) for name in _ACT_PRICED if name in flags}
    return RewardResult(sum(parts.values(), 0.0), status, parts)


def ends_episode(flags: Collection[str], config: ActShaping = ACT_SHAPING) -> bool:
    """Whether a turn with these flags ends its episode."""
    return any(name in flags for name in config.end_episode)


def review_reward(
    outcome: EditOutcome, flags: Collection[str], *, utility: RewardResult, config: ReviewShaping = REVIEW_SHAPING
) -> RewardResult:
    """Returns R_skill = utility + shaping of a review turn.

    Args:
      outcome: what the call did.
      flags: `ReviewParse.flags`.
      utility: of the edit; `utility.NO_EDIT` when the bank is unchanged. Without a value the turn has none either:
        shaping alone would rank an edit in its group by an accident of the machine.
      config: the amounts.
    """
    if utility.value is None:
        return RewardResult(None, utility.status)
    name = _priced_outcome(outcome)
    parts = {"utility": utility.value, name: getattr(config, name)}
    parts |= {flag: getattr(config, flag) for flag in _REVIEW_PRICED if flag in flags}
    return RewardResult(sum(parts.values()), Status.OK, parts)


def _priced_outcome(outcome: EditOutcome) -> str:
    if outcome.env_action:
        return "env_action"
    if outcome.placeholder:
        return "placeholder"
    if outcome.kind in (EditKind.ADDED, EditKind.UPDATED, EditKind.KEPT):
        return "valid"
    return outcome.kind.value
