"""AppWorld: the real engine over HTTP, or the same generated tasks in plain Python (`appworld_lite`)."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import random
from collections.abc import Sequence

from sage_jax import config
from sage_jax.agents.coder import CodeDemonstrator
from sage_jax.benchmarks.base import Progress
from sage_jax.config import setting
from sage_jax.envs.base import EnvFactory
from sage_jax.errors import ConfigError, DataError
from sage_jax.types import Task

SPLITS = ("train", "dev", "test_normal", "test_challenge")
JUDGE = ("done", "always")  # as in envs.appworld.env, which loads the sandbox
DATA = "APPWORLD_ROOT"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppworldSettings(config.Settings):
    """AppWorld and AppWorld lite."""

    app_servers: int = setting(4, "engine servers of a worker, as many as episodes at one time in it", low=1, free=True)
    app_memory_mb: int = setting(3072, "address space of a server, in MiB", low=256, free=True)
    app_output: int = setting(4000, "most characters of an output that the agent is shown", low=80)
    app_judge: str = setting("done", "when tests are run; 'always' gives partial credit", choices=JUDGE)
    app_guide: bool = setting(True, "tell the agent how to work in the shell")
    app_expert_lookups: bool = setting(True, "the scripted expert reads an app's documents before it writes functions")
    app_sandbox: str = setting("auto", "backend of the sandbox, or auto", free=True)
    app_unsafe_no_sandbox: bool = setting(False, "go on where no sandbox works: the agent's code can do all you can")
    lite_seed: int = setting(0, "seed of the lite world", low=0)
    lite_train: int = setting(2, "lite training scenarios of each kind", low=1)
    lite_dev: int = setting(6, "lite scenarios in dev", low=1)
    lite_test: int = setting(12, "lite scenarios in test_normal", low=1)
    lite_challenge: int = setting(3, "lite scenarios of each kind in test_challenge", low=1)


@dataclasses.dataclass(frozen=True)
class Appworld:
    """AppWorld with the options of a run (`Benchmark`).

    Attributes:
      settings: its own keys.
      source: "official" (the root that $APPWORLD_ROOT names), "generated" (the world that the installation built), or
        "auto": official when it is named.
      cache: not used.
      processes: worker processes; servers are counted in each.
    """

    settings: AppworldSettings
    source: str
    cache: pathlib.Path
    processes: int = 1

    splits = SPLITS
    code = True

    def load(self, splits: Sequence[str], progress: Progress) -> dict[str, tuple[Task, ...]]:
        """Lists the tasks of each split, a scenario's three in a row.

        Raises:
          ConfigError: official data are asked for and $APPWORLD_ROOT is not set.
          DataError: the engine is not installed, or the root holds no tasks.
        """
        from sage_jax.envs.appworld.dataset import load_tasks

        tasks = load_tasks(self._root())
        return {split: tasks.get(split, ()) for split in splits}

    def factory(self) -> EnvFactory:
        """Returns what starts servers."""
        from sage_jax.envs.appworld.env import AppworldFactory

        own = self.settings
        return AppworldFactory(
            sandbox=own.app_sandbox,
            unsafe_no_sandbox=own.app_unsafe_no_sandbox,
            servers=own.app_servers,
            memory_mb=own.app_memory_mb,
            text_chars=own.app_output,
            evaluate=own.app_judge,
        )

    def size_key(self, split: str) -> str:
        """Returns the key that decides how many tasks a split has."""
        return "source"

    def demonstrator(self, observation: str, family: str, rng: random.Random) -> CodeDemonstrator:
        """Returns the scripted expert of the generated world; it knows no official task."""
        solutions = _engine_solutions(self._root())
        return CodeDemonstrator(observation, solutions, rng, lookups=self.settings.app_expert_lookups)

    def _root(self) -> str:
        from sage_jax.envs.appworld.home import default_home

        named = os.environ.get(DATA, "")
        if self.source == "official" and not named:
            raise ConfigError(
                f"source='official' with benchmark='appworld' needs ${DATA}: the root `appworld download data` filled"
            )
        return named if named and self.source != "generated" else default_home().twin


@dataclasses.dataclass(frozen=True)
class AppworldLite:
    """The generated world without the engine, with the options of a run (`Benchmark`); attributes as `Appworld`."""

    settings: AppworldSettings
    source: str
    cache: pathlib.Path
    processes: int = 1

    splits = SPLITS
    code = True

    def load(self, splits: Sequence[str], progress: Progress) -> dict[str, tuple[Task, ...]]:
        """Makes the tasks of each split.

        Raises:
          ConfigError: official data are asked for, which need the engine.
        """
        from sage_jax.envs.appworld.lite.env import load_lite_tasks

        if self.source == "official":
            raise ConfigError(
                "source='official' with benchmark='appworld_lite': official tasks need the engine: appworld"
            )
        tasks = load_lite_tasks(self._world())
        return {split: tasks[split] for split in splits}

    def factory(self) -> EnvFactory:
        """Returns what makes lite worlds."""
        from sage_jax.envs.appworld.lite.env import AppworldLiteFactory

        own = self.settings
        return AppworldLiteFactory(
            sandbox=own.app_sandbox,
            unsafe_no_sandbox=own.app_unsafe_no_sandbox,
            text_chars=own.app_output,
            evaluate=own.app_judge,
        )

    def size_key(self, split: str) -> str:
        """Returns the key that decides how many tasks a split has."""
        keys = {
            "train": "lite_train",
            "dev": "lite_dev",
            "test_normal": "lite_test",
            "test_challenge": "lite_challenge",
        }
        return keys[split]

    def demonstrator(self, observation: str, family: str, rng: random.Random) -> CodeDemonstrator:
        """Returns the scripted expert."""
        solutions = _lite_solutions(self._world())
        return CodeDemonstrator(observation, solutions, rng, lookups=self.settings.app_expert_lookups)

    def _world(self):
        from sage_jax.envs.appworld.twin.world import WorldOptions

        own = self.settings
        return WorldOptions(own.lite_seed, own.lite_train, own.lite_dev, own.lite_test, own.lite_challenge)


@functools.lru_cache(maxsize=4)
def _lite_solutions(options) -> dict[str, tuple[str, str]]:
    """Returns instruction -> (functions, call) of a lite world."""
    from sage_jax.envs.appworld.twin.world import make_world

    return {task.instruction: (task.solution.functions, task.solution.call) for task in make_world(options).tasks}


@functools.lru_cache(maxsize=4)
def _engine_solutions(root: str) -> dict[str, tuple[str, str]]:
    """Returns instruction -> (functions, call) of the tasks of a data root that have a scripted solution.

    Raises:
      DataError: none has one.
    """
    from sage_jax.envs.appworld.dataset import load_tasks, solution_of

    tasks = [task for split in load_tasks(root).values() for task in split]
    known = [(task.payload["instruction"], solution_of(root, task.id)) for task in tasks]
    solutions = {words: (found["functions"], found["call"]) for words, found in known if found is not None}
    if not solutions:
        raise DataError(
            f"{root} holds no scripted solutions, so there is no expert to play the cold start: name a set by sft_data "
            "(experiments/collect_experts.py makes one), or set sft_episodes=0"
        )
    return solutions
