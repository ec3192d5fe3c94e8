"""GAIA: a user's own copy, or generated questions over generated files and pages."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
from collections.abc import Sequence

from sage_jax import config
from sage_jax.benchmarks.base import TRAIN, Progress
from sage_jax.config import setting
from sage_jax.data.expert_episodes import Demonstrator
from sage_jax.envs.base import EnvFactory
from sage_jax.errors import ConfigError
from sage_jax.types import Task

VARIABLE = "GAIA_DATA"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaiaSettings(config.Settings):
    """GAIA's worlds and tools."""

    worlds_seed: int = setting(0, "seed of the generated worlds", low=0)
    worlds_train: int = setting(30, "generated training worlds, nine questions each", low=0)
    worlds_test: int = setting(6, "generated worlds of valid and of test, nine questions each", low=0)
    worlds_formats: tuple[str, ...] = setting(("csv", "json", "txt"), "formats of the generated files")
    worlds_layouts: tuple[str, ...] = setting(("plain",), "layouts of the generated worlds, in turn")
    gaia_python: bool = setting(True, "give the agent python, in the sandbox of this machine")
    gaia_search_url: str = setting("", "web API that questions of the real benchmark search with; empty is none")
    gaia_search_key_env: str = setting("", "environment variable that holds its key; empty is none", free=True)
    gaia_train_share: float = setting(0.6, "share of the validation questions that is trained on", low=0, high=0.95)


@dataclasses.dataclass(frozen=True)
class Gaia:
    """GAIA with the options of a run (`Benchmark`).

    Attributes:
      settings: its own keys.
      source: "official" (the folder that $GAIA_DATA names), "generated", or "auto": official when it is named.
      cache: not used; worlds are made anew by each process.
      processes: not used.
    """

    settings: GaiaSettings
    source: str
    cache: pathlib.Path
    processes: int = 1

    splits = (TRAIN, "valid", "test")

    def load(self, splits: Sequence[str], progress: Progress) -> dict[str, tuple[Task, ...]]:
        """Lists the questions of each split; the family is the level, "level1".

        Of the real benchmark the validation questions are used, whose answers are known: every one is given to train
        or to test by its place in an order that the seed draws; valid is empty.

        Raises:
          ConfigError: the real questions are asked for and $GAIA_DATA is not set.
          DataError: the copy is missing or broken.
        """
        from sage_jax.envs.gaia import TwinOptions, make_tasks, read_gaia

        own, named = self.settings, os.environ.get(VARIABLE, "")
        if self.source == "official" and not named:
            raise ConfigError(f"source='official' with benchmark='gaia': set {VARIABLE} to the folder of your copy")
        if self.source == "generated" or not named:
            sizes = (own.worlds_seed, own.worlds_train, own.worlds_test, own.worlds_test)
            tasks = make_tasks(TwinOptions(*sizes, formats=own.worlds_formats, layouts=own.worlds_layouts))
            return {split: tuple(tasks[split]) for split in splits}
        questions = read_gaia(named)
        order = random.Random(own.worlds_seed).sample(range(len(questions)), len(questions))
        cut = round(own.gaia_train_share * len(questions))
        parts = {TRAIN: sorted(order[:cut]), "valid": [], "test": sorted(order[cut:])}
        return {split: tuple(dataclasses.replace(questions[i], split=split) for i in parts[split]) for split in splits}

    def factory(self) -> EnvFactory:
        """Returns what makes environments."""
        from sage_jax.envs.gaia import GaiaFactory
        from sage_jax.tools.python import SandboxPython
        from sage_jax.tools.search import WebSearchOptions

        own = self.settings
        search = None
        if own.gaia_search_url:
            search = WebSearchOptions(own.gaia_search_url, key_env=own.gaia_search_key_env)
        return GaiaFactory(web_search=search, python=SandboxPython() if own.gaia_python else None)

    def size_key(self, split: str) -> str:
        """Returns the key that decides how many questions a split has."""
        return "worlds_train" if split == TRAIN else "worlds_test"

    def demonstrator(self, observation: str, family: str, rng: random.Random) -> Demonstrator:
        """Raises ConfigError: calls of the expert are not written as conversations of an agent that thinks."""
        raise ConfigError("benchmark='gaia' has no demonstrations for a cold start; set sft_episodes=0")
