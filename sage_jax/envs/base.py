"""What an environment is: text in, text out, one episode at a time.

An environment is synchronous and lives in a worker process (`pool.py`); nothing here imports jax. A factory is what is
sent to the worker: it is pickled, called once for each environment the worker hosts, and may share caches among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from sage_jax.types import Task


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the agent sees when an episode starts.

    Attributes:
      text: the first observation, task description included.
      admissible: actions that would do something now, in a fixed order; empty when the environment lists none.
      info: readable extras. Common keys: "task" (the task sentence), "family", "expert_action" (only when asked for).
    """

    text: str
    admissible: tuple[str, ...] = ()
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What one action led to.

    Attributes:
      text: the observation after the action.
      admissible: actions that would do something now, in a fixed order.
      reward: the environment's own reward of this step (success pays 1.0).
      done: whether the environment ended the episode. Step limits are the caller's business.
      won: whether the task is solved now.
      info: readable extras. Common keys: "invalid" (the action did nothing because it is not one), "expert_action".
    """

    text: str
    admissible: tuple[str, ...]
    reward: float
    done: bool
    won: bool
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Environment(Protocol):
    """One episode at a time of one benchmark. Every failure that is not the agent's raises EnvError or DataError."""

    def reset(self, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts an episode of `task`; with `expert`, every info carries "expert_action" (None: the expert gave up)."""

    def step(self, action: str) -> StepResult:
        """Plays one action."""

    def close(self) -> None:
        """Frees what the environment holds. A closed environment is not used again."""


class ShellEnvironment(Environment, Protocol):
    """An environment whose actions are code in a shell that keeps its names."""

    def run(self, code: str) -> tuple[bool, str]:
        """Runs code that is no turn of the agent's: before its first turn, or after its last.

        It is not counted, changes nothing of the verdict, and is run with the agent's rights. Returns whether it ran
        through, and what it printed or how it failed.
        """


class EnvFactory(Protocol):
    """Makes environments that may share caches. Must be picklable before its first call."""

    def __call__(self) -> Environment:
        """Returns a new environment."""
