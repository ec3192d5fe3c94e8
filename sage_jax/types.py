"""The data that flows through a round: tasks in, trajectories with rewards and advantages out.

Frozen dataclasses without jax, so that environment workers and HTTP clients can import them cheaply.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class Status(enum.StrEnum):
    """How a piece of work ended. Only `OK` and the agent's own faults may carry a reward."""

    OK = "ok"
    TRUNCATED = "truncated"  # the agent ran out of steps or of context: a real outcome, rewarded as such
    ENV_ERROR = "env_error"  # the environment crashed: no reward
    ENGINE_ERROR = "engine_error"  # generation failed: no reward
    TIMEOUT = "timeout"  # a deadline of ours passed: no reward
    STRAGGLER = "straggler"  # it took far longer than the others of its round and was ended: no reward
    ABORTED = "aborted"  # the engine was told to end its turn: no reward

    @property
    def has_reward(self) -> bool:
        """Whether the outcome says something about the policy."""
        return self in (Status.OK, Status.TRUNCATED)


@dataclasses.dataclass(frozen=True)
class RewardResult:
    """A reward or the reason why there is none. `value is None` exactly when `status` has no reward.

    Attributes:
      value: the scalar reward, or None after an infrastructure failure.
      status: how the rewarded work ended.
      parts: named addends of `value`, for reading.
    """

    value: float | None
    status: Status = Status.OK
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.value is None) == self.status.has_reward:
            raise ValueError(f"reward {self.value!r} does not fit status {self.status.value!r}")


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of one benchmark.

    Attributes:
      id: unique inside the benchmark and split, stable across machines.
      benchmark: "alfworld", ...
      split: "train", "valid_seen", ...
      family: task family, the unit of per-family results and of probe selection.
      payload: what the environment needs to start the task (JSON-serialisable).
    """

    id: str
    benchmark: str
    split: str
    family: str
    payload: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class VersionSpan:
    """Output tokens [start, end) were sampled by weights `version`."""

    version: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Turn:
    """One model output and the tokens that were added to its context just before it.

    Attributes:
      stream: "act" or "review"; advantages are normalised inside (group, stream).
      prompt_ids: ids appended to the context before the output. The whole prompt when `starts_context`.
      output_ids: the ids the engine sampled, stop token included. Never re-tokenised.
      logprobs: log-probability of each output id under the sampling distribution's untruncated softmax(logits / T).
      starts_context: True when the context begins here (step-wise prompts), False when it continues the previous turn.
      sampled_logprobs: log-probability of each output id under the distribution it was drawn from, truncated and
        renormalised; None where the engine does not tell.
      weight_version: version of the weights at the end of the output.
      weight_versions: spans of the output by the version that sampled them, in order; several only where new weights
        came in mid-turn. Empty where the engine does not tell.
      finish_reason: "stop", "length" or "abort".
      reward: this turn's own shaping or skill reward; None when the turn only shares the trajectory's reward.
      advantage: filled once the group is complete; None means "leave this turn out of the loss".
      info: readable extras (text of the observation and output, parsed action, tool outcome, ...).
    """

    stream: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    starts_context: bool
    weight_version: int = 0
    weight_versions: tuple[VersionSpan, ...] = ()
    finish_reason: str = "stop"
    reward: RewardResult | None = None
    advantage: float | None = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sampled_logprobs: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One rollout of one task.

    Attributes:
      task: the task played.
      group: key of the group whose statistics normalise this rollout.
      seed: the seed that sampling used.
      turns: in order of time.
      reward: the trajectory's outcome.
      info: success, steps, skill ids shown, ... (JSON-serialisable).
    """

    task: Task
    group: str
    seed: int
    turns: tuple[Turn, ...]
    reward: RewardResult
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
