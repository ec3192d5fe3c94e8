"""The seam between a run and a benchmark; docs/environments.md tells how to add one.

A benchmark is made from its own group of configuration keys and from what all benchmarks share. Making one loads
nothing: the engine or the data come with `load` and `factory`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from sage_jax.data.expert_episodes import Demonstrator
from sage_jax.envs.base import EnvFactory
from sage_jax.types import Task

TRAIN = "train"

Progress = Callable[[int, int], None]


class Benchmark(Protocol):
    """One benchmark with the options of a run.

    Attributes:
      splits: what an evaluation may name.

    One whose actions are code in a shell has `code = True` (`plays_code`): its environments are
    `envs.base.ShellEnvironment`s and its expert is a `data.code_episodes.Coder`.
    """

    splits: tuple[str, ...]

    def load(self, splits: Sequence[str], progress: Progress) -> dict[str, tuple[Task, ...]]:
        """Lists the tasks of each split, making them first where that is needed; a split may come back empty.

        A task's `family` names its row in the tables, the category of its skills and its probes. Splits that were not
        asked for, but that the benchmark's own keys ask for, may be added.

        Args:
          splits: those the run needs.
          progress: called with (done, wanted) while tasks are made.

        Raises:
          DataError: files are missing or broken.
        """

    def factory(self) -> EnvFactory:
        """Returns what makes environments in worker processes."""

    def size_key(self, split: str) -> str:
        """Returns the configuration key that decides how many tasks a split has, for messages."""

    def demonstrator(self, observation: str, family: str, rng: random.Random) -> Demonstrator:
        """Returns the scripted expert of one episode, for the cold start.

        Args:
          observation: the first one.
          family: of the task.
          rng: of the expert's own choices.
        """


def plays_code(benchmark: Benchmark) -> bool:
    """Whether actions are code in a shell."""
    return getattr(benchmark, "code", False)
