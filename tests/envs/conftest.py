"""A tiny set of generated games, made once for all tests of environments."""

import pathlib

import pytest

from sage_jax.envs.alfworld.dataset import DATA_FOLDER, ensure_games
from sage_jax.envs.alfworld.games import GameOptions
from sage_jax.types import Task

OPTIONS = GameOptions(seed=3, train=2, valid_seen=1, valid_unseen=1, max_receptacles=8, min_objects=3, max_objects=6)


@pytest.fixture(scope="session")
def game_cache(tmp_path_factory) -> pathlib.Path:
    """The cache folder that holds the games."""
    return tmp_path_factory.mktemp("games")


@pytest.fixture(scope="session")
def game_root(game_cache) -> pathlib.Path:
    """The folder of the games, made in this process."""
    return ensure_games(OPTIONS, game_cache, processes=0)


@pytest.fixture(scope="session")
def tasks(game_root) -> list[Task]:
    """Every generated game as a task, sorted."""
    root = game_root / DATA_FOLDER
    return [
        Task(
            id=str(path.parent.relative_to(root)),
            benchmark="alfworld",
            split=path.parts[-4],
            family=path.parts[-3].partition("-")[0],
            payload={"root": str(root), "game": str(path.relative_to(root))},
        )
        for path in sorted(root.rglob("game.tw-pddl"))
    ]


@pytest.fixture(scope="session")
def family_tasks(tasks) -> dict[str, Task]:
    """One task of each family."""
    return {task.family: task for task in tasks}
