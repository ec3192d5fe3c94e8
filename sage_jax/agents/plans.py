"""What is played and how: the options of an agent, and the plan of one episode."""

from __future__ import annotations

import dataclasses

from sage_jax.errors import ConfigError
from sage_jax.skills import SkillBank
from sage_jax.skills.programs import Program
from sage_jax.types import Task

CONTEXTS = ("chat", "steps")


@dataclasses.dataclass(frozen=True)
class AgentOptions:
    """How an agent plays.

    Attributes:
      context: "chat" (one growing context, compact texts) or "steps" (one fresh prompt a step, verl-agent's way).
      max_steps: environment steps of an episode.
      act_tokens, review_tokens: most tokens of one turn.
      history: steps shown in a "steps" prompt.
      top_p, top_k: truncation of the sampling distribution; 1 and 0 are off.
      choices: sample only admissible actions (the thought is skipped); reported apart.
      episode_timeout_s: an episode that takes longer ends with status timeout; a review has as long again.
    """

    context: str = "chat"
    max_steps: int = 30
    act_tokens: int = 48
    review_tokens: int = 128
    history: int = 12
    top_p: float = 1.0
    top_k: int = 0
    choices: bool = False
    episode_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise ConfigError(f"context={self.context!r}: must be one of {', '.join(CONTEXTS)}")


@dataclasses.dataclass(frozen=True)
class EpisodePlan:
    """One episode to play.

    Attributes:
      task: the task.
      group: key of the group whose statistics normalise the episode.
      seed: decides the environment's and every sampling draw.
      bank: skills to retrieve from when the episode starts; None shows none.
      review: whether a review turn follows.
      temperature: of sampling; 0 is greedy.
      programs: functions that an agent which writes code is given (`coding.CodePlayer`); None gives none.
      credit: how their use is told, a member of `skills.programs.CREDITS`.
    """

    task: Task
    group: str
    seed: int
    bank: SkillBank | None = None
    review: bool = False
    temperature: float = 1.0
    programs: tuple[Program, ...] | None = None
    credit: str = "trace"
