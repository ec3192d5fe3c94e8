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
        self._episode = Episode(self._planner)
        self._expert: Expert | None = None
        self._playing = False

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
        self._playing = False
        game = self._games.load(pathlib.Path(task.payload["root"], task.payload["game"]))
        self._episode.start(game)
        self._expert = Expert(self._episode, derive_seed(seed, "alfworld/expert", task.id)) if expert else None
        self._playing = True
        raw = self._episode.feedback
        body, _, goal = raw.partition(_TASK_MARK)
        room = body.partition("=-")[2].strip() if body.startswith("-=") else body.strip()
        info: dict[str, Any] = {"room": room, "task": goal.strip(), "family": game.family, "raw": raw}
        if self._expert is not None:
            info["expert_action"] = self._expert.suggest()
        return Observation(f"{room}\n\n{_TASK_MARK}{goal.strip()}", self._admissible(), info)

    def step(self, action: str) -> StepResult:
        """Plays an action; one that is not possible gives "Nothing happens." and info["invalid"] = True.

        Raises:
          EnvError: no episode is running.
        """
        if not self._playing:
            raise EnvError("step() was called without a running episode; call reset() first")
        action = action.strip()
        valid = self._episode.play(action)
        won = self._episode.won
        info: dict[str, Any] = {"invalid": not valid}
        if self._expert is not None:
            info["expert_action"] = self._expert.suggest(action)
        self._playing = not won
        return StepResult(self._episode.feedback, self._admissible(), float(won), won, won, info)

    def close(self) -> None:
        """Hands the planner back."""
        self._playing = False
        self._planner.close()

    def _admissible(self) -> tuple[str, ...]:
        return tuple(command for command in self._episode.commands if command not in self._hidden)
