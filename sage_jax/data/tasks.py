"""Where tasks come from: the official ALFWorld tree when there is one, generated games otherwise.

A task names a game file; the environment reads it when an episode starts. Listing reads no game, so that a tree of
thousands is listed at once.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from sage_jax.errors import ConfigError, DataError
from sage_jax.types import Task

BENCHMARK = "alfworld"
SPLITS = ("train", "valid_seen", "valid_unseen")
SOURCES = ("auto", "generated", "official")
_DATA_FOLDER = "json_2.1.1"
_UNSUPPORTED = ("movable", "Sliced")  # task kinds that ALFWorld's text games leave out


@dataclasses.dataclass(frozen=True)
class AlfworldSource:
    """Which games to play.

    Attributes:
      source: "official" (the tree under $ALFWORLD_DATA), "generated", or "auto": official when it is there.
      cache: folder for generated games; "" means $SAGE_JAX_CACHE, or ~/.cache/sage_jax.
      splits: splits wanted; an official tree must have each of them.
      games: options of the generator by name, see envs.alfworld.games.GameOptions.
      processes: worker processes that generate games.
      allow_missing: skip trial folders of an official tree that lack their game file, instead of refusing the tree.
    """

    source: str = "auto"
    cache: str = ""
    splits: tuple[str, ...] = SPLITS
    games: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    processes: int = 2
    allow_missing: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a source or split that does not exist."""
        if self.source not in SOURCES:
            raise ConfigError(f"source={self.source!r}: expected one of {', '.join(SOURCES)}")
        for split in self.splits:
            if split not in SPLITS:
                raise ConfigError(f"splits contains {split!r}: expected some of {', '.join(SPLITS)}")

    @property
    def cache_folder(self) -> pathlib.Path:
        """The folder for generated data."""
        return cache_folder(self.cache)

    @property
    def translations_folder(self) -> pathlib.Path:
        """Where the environments keep grounded games: pass it to AlfworldFactory(translations=...)."""
        return self.cache_folder / "alfworld-translations"


def cache_folder(cache: str) -> pathlib.Path:
    """Returns the folder for generated data: `cache`, else $SAGE_JAX_CACHE, else ~/.cache/sage_jax."""
    default = os.environ.get("SAGE_JAX_CACHE") or pathlib.Path.home() / ".cache" / "sage_jax"
    return pathlib.Path(cache or default).expanduser().absolute()


def official_root() -> pathlib.Path:
    """Returns where ALFWorld's own downloader puts its data: $ALFWORLD_DATA, or ~/.cache/alfworld."""
    return pathlib.Path(os.environ.get("ALFWORLD_DATA") or pathlib.Path.home() / ".cache" / "alfworld").expanduser()


def load_tasks(
    source: AlfworldSource, *, progress: Callable[[int, int], None] | None = None
) -> dict[str, tuple[Task, ...]]:
    """Lists the tasks of each split, generating the games first where that is what is wanted.

    Args:
      source: which games.
      progress: called with (games made, games wanted) while games are generated.

    Returns:
      Tasks by split, sorted by id. Payload: "root" (folder) and "game" (game file inside it).

    Raises:
      DataError: an official tree lacks a split or a file; the message names it.
    """
    official = official_root() / _DATA_FOLDER
    if source.source == "official" or (source.source == "auto" and official.is_dir()):
        if not official.is_dir():
            raise DataError(
                f"{official} is missing: set ALFWORLD_DATA to the folder that holds {_DATA_FOLDER} "
                "(alfworld-download makes it), or use the generated games"
            )
        return {split: _list_split(official, split, source.allow_missing) for split in source.splits}
    from sage_jax.envs.alfworld.dataset import ensure_games  # loads the engine: only where games may have to be made
    from sage_jax.envs.alfworld.games import GameOptions

    unknown = sorted(set(source.games) - {field.name for field in dataclasses.fields(GameOptions)})
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(GameOptions))
        raise ConfigError(f"games has no option {', '.join(unknown)}; it has {known}")
    options = GameOptions(**source.games)
    root = ensure_games(options, source.cache_folder, processes=source.processes, progress=progress) / _DATA_FOLDER
    wanted = [split for split in source.splits if getattr(options, split)]
    return {split: _list_split(root, split, allow_missing=False) for split in wanted}


def _list_split(root: pathlib.Path, split: str, allow_missing: bool) -> tuple[Task, ...]:
    """Lists the games of one split of a tree in the official layout."""
    folder = root / split
    if not folder.is_dir():
        raise DataError(f"{folder} is missing; {root} has no split {split!r}")
    tasks = []
    for kind in sorted(folder.iterdir()):
        if not kind.is_dir() or any(word in kind.name for word in _UNSUPPORTED):
            continue
        for trial in sorted(kind.iterdir()):
            if trial.is_dir() and _is_complete(trial, allow_missing):
                tasks.append(_task(root, split, kind.name, trial.name))
    if not tasks:
        raise DataError(f"{folder} holds no games")
    return tuple(sorted(tasks, key=lambda task: task.id))


def _is_complete(trial: pathlib.Path, allow_missing: bool) -> bool:
    """Whether both files of a game are there; a game without its trajectory is always an error."""
    game, trajectory = trial / "game.tw-pddl", trial / "traj_data.json"
    for path in (trajectory, game):
        if not path.is_file():
            if path is game and allow_missing:
                return False
            raise DataError(f"{path} is missing: download the data again, or skip such games with allow_missing=True")
    return True


def _task(root: pathlib.Path, split: str, kind: str, trial: str) -> Task:
    return Task(
        id=f"{BENCHMARK}/{split}/{kind}/{trial}",
        benchmark=BENCHMARK,
        split=split,
        family=kind.partition("-")[0],
        # A folder is named <family>-<object>-<movable>-<receptacle>-<scene>.
        payload={"root": os.fspath(root), "game": f"{split}/{kind}/{trial}/game.tw-pddl", "topic": kind.split("-")[1]},
    )
