"""ALFWorld: the official games, or generated ones, on the real engine."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence

from sage_jax import config
from sage_jax.agents.expert import HouseholdDemonstrator
from sage_jax.benchmarks.base import TRAIN, Progress
from sage_jax.config import setting
from sage_jax.data.tasks import SPLITS, AlfworldSource, load_tasks
from sage_jax.envs.base import EnvFactory
from sage_jax.types import Task

FULL_ROOMS = "full_rooms"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlfworldSettings(config.Settings):
    """ALFWorld's games."""

    games_seed: int = setting(0, "seed of the generated games", low=0)
    games_train: int = setting(40, "generated training games of each family", low=0)
    games_valid: int = setting(10, "generated games of each family in valid_seen and in valid_unseen", low=0)
    max_receptacles: int = setting(12, "receptacles of a generated room at most; 0 keeps the full rooms", low=0)
    expert_steps: int = setting(30, "the scripted expert must solve a generated game within so many steps", low=5)
    habit: float = setting(0.0, "share of objects of generated games that lie at a usual place", low=0, high=1)
    review_guess: float = setting(0.0, "share of the cold start's reviews that name a place at random", low=0, high=1)
    eval_full_rooms: bool = setting(False, "also evaluate on rooms of full size (split full_rooms)", free=True)


@dataclasses.dataclass(frozen=True)
class Alfworld:
    """ALFWorld with the options of a run (`Benchmark`).

    Attributes:
      settings: its own keys.
      source: "official" (the tree under $ALFWORLD_DATA), "generated", or "auto": official when it is there.
      cache: folder for generated games.
      processes: worker processes that generate games.
    """

    settings: AlfworldSettings
    source: str
    cache: pathlib.Path
    processes: int

    splits = SPLITS

    def load(self, splits: Sequence[str], progress: Progress) -> dict[str, tuple[Task, ...]]:
        """Lists the games of each split, and the full rooms when they are wanted."""
        source = self._source(tuple(splits))
        tasks = load_tasks(source, progress=progress)
        if self.settings.eval_full_rooms:
            games = {**source.games, "train": 0, "valid_seen": 0, "max_receptacles": None, "expert_steps": 60}
            full = dataclasses.replace(source, source="generated", splits=("valid_unseen",), games=games)
            tasks[FULL_ROOMS] = load_tasks(full, progress=progress)["valid_unseen"]
        return tasks

    def factory(self) -> EnvFactory:
        """Returns what makes environments; grounded games are kept in the cache."""
        from sage_jax.envs.alfworld import AlfworldFactory  # loads the engine

        return AlfworldFactory(translations=str(self._source(()).translations_folder))

    def size_key(self, split: str) -> str:
        """Returns the key that decides how many games a split has."""
        return "games_train" if split == TRAIN else "games_valid"

    def demonstrator(self, observation: str, family: str, rng: random.Random) -> HouseholdDemonstrator:
        """Returns the household expert."""
        return HouseholdDemonstrator(observation, family, rng, guess=self.settings.review_guess)

    def _source(self, splits: tuple[str, ...]) -> AlfworldSource:
        own = self.settings
        games = {
            "seed": own.games_seed,
            "train": own.games_train,
            "valid_seen": own.games_valid,
            "valid_unseen": own.games_valid,
            "max_receptacles": own.max_receptacles or None,
            "expert_steps": own.expert_steps,
            "habit": own.habit,
        }
        return AlfworldSource(self.source, str(self.cache), splits, games, self.processes)
