"""ALFWorld as an `Environment`: the real engine, household tasks in text."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from sage_jax.envs.alfworld.episode import Episode
from sage_jax.envs.alfworld.expert import Expert
from sage_jax.envs.alfworld.game import GameCache
from sage_jax.envs.alfworld.planner import PlannerLibrary
from sage_jax.envs.base import Observation, StepResult
from sage_jax.errors import EnvError
from sage_jax.seeding import derive_seed
from sage_jax.types import Task

_TASK_MARK = "Your task is to: "


@dataclasses.dataclass
class AlfworldFactory:
    """Makes ALFWorld environments that share one cache of loaded games.

    Attributes:
      include_help: whether "help" is listed among the admissible actions (it stays playable either way).
      cached_games: loaded games kept in each worker process.
      translations: folder where grounded games are kept across processes; None keeps them in memory only.
    """

    include_help: bool = False
    cached_games: int = 64
    translations: str | None = None
    _cache: GameCache | None = dataclasses.field(default=None, init=False, repr=False)

    def __call__(self) -> AlfworldEnv:
        """Returns a new environment."""
        if self._cache is None:
            folder = None if self.translations is None else pathlib.Path(self.translations)
            self._cache = GameCache(self.cached_games, folder)
        return AlfworldEnv(self._cache, include_help=self.include_help)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings without the cache."""
        return {**self.__dict__, "_cache": None}


class AlfworldEnv:
    """Plays one game at a time: reward 1.0 for the step that solves the task, which ends the episode, else 0.0."""

    def __init__(self, games: GameCache, *, include_help: bool = False) -> None:
        """Takes a private copy of the planner.

        Args:
          games: cache of loaded games, shared by the environments of a process.
          include_help: whether "help" is listed among the admissible actions.
        """
        self._games = games
        self._hidden = frozenset() if include_help else frozenset({"help"})
        self._planner = PlannerLibrary()
        self._episode: Episode | None = None  # None: no episode is running
        self._expert: Expert | None = None

    def reset(self, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts a game.

        Args:
          task: its payload holds "root" (the data folder) and "game" (the game file inside it).
          seed: of the expert's choices; the game itself has no chance in it.
          expert: whether every info carries "expert_action".

        Returns:
          The room description and the task. Info: "room", "task", "family", "raw" (the engine's own first text).

        Raises:
          DataError: the game's files are missing or broken; the message names them.
        """
        self._episode = None
        game = self._games.load(pathlib.Path(task.payload["root"], task.payload["game"]))
        episode = Episode(game, self._planner)
        self._expert = Expert(episode, derive_seed(seed, "alfworld/expert", task.id)) if expert else None
        self._episode = episode
        raw = episode.feedback
        body, _, goal = raw.partition(_TASK_MARK)
        room = body.partition("=-")[2].strip() if body.startswith("-=") else body.strip()
        info: dict[str, Any] = {"room": room, "task": goal.strip(), "family": game.family, "raw": raw}
        if self._expert is not None:
            info["expert_action"] = self._expert.suggest()
        return Observation(f"{room}\n\n{_TASK_MARK}{goal.strip()}", self._admissible(episode), info)

    def step(self, action: str) -> StepResult:
        """Plays an action; one that is not possible gives "Nothing happens." and info["invalid"] = True.

        Raises:
          EnvError: no episode is running.
        """
        episode = self._episode
        if episode is None:
            raise EnvError("step() was called without a running episode; call reset() first")
        action = action.strip()
        valid = episode.play(action)
        won = episode.won
        info: dict[str, Any] = {"invalid": not valid}
        if self._expert is not None:
            info["expert_action"] = self._expert.suggest(action)
        if won:
            self._episode = None
        return StepResult(episode.feedback, self._admissible(episode), float(won), won, won, info)

    def close(self) -> None:
        """Hands the planner back."""
        self._episode = None
        self._planner.close()

    def _admissible(self, episode: Episode) -> tuple[str, ...]:
        return tuple(command for command in episode.commands if command not in self._hidden)
