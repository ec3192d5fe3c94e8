"""Lists the tasks of an AppWorld data root: the official one that a user has, or our own world."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

from sage_jax.errors import DataError
from sage_jax.types import Task

BENCHMARK = "appworld"
SPLITS = ("train", "dev", "test_normal", "test_challenge")
SOLUTIONS = "solutions.json"


def scenario_of(task_id: str) -> str:
    """Returns the scenario of a task: the part before the underscore."""
    return task_id.rpartition("_")[0]


def load_tasks(root: str) -> dict[str, tuple[Task, ...]]:
    """Returns the tasks of a data root by split, in the order of its files: a scenario's three in a row.

    Each task's family is its scenario's template in our world, its difficulty level in an official one.

    Raises:
      DataError: the folder is no data root, or a listed task is missing.
    """
    folder = pathlib.Path(root, "data")
    found = {}
    for split in SPLITS:
        path = folder / "datasets" / f"{split}.txt"
        if path.exists():
            ids = [line.strip() for line in path.read_text().splitlines() if line.strip()]
            found[split] = tuple(_task(folder, root, split, task_id) for task_id in ids)
    if not found:
        raise DataError(f"{folder / 'datasets'} lists no tasks; it should hold {', '.join(s + '.txt' for s in SPLITS)}")
    return found


def solution_of(root: str, task_id: str) -> dict[str, Any] | None:
    """Returns the scripted expert's code for a task of our world ({"functions", "call"}), None for an official one."""
    return _solutions(root).get(task_id, {}).get("solution")


def is_twin(root: str) -> bool:
    """Whether a data root holds our own world."""
    return bool(_solutions(root))


def _task(folder: pathlib.Path, root: str, split: str, task_id: str) -> Task:
    path = folder / "tasks" / task_id / "specs.json"
    if not path.exists():
        raise DataError(f"{path} is missing, though {split}.txt lists the task")
    specs = json.loads(path.read_text())
    solution = _solutions(root).get(task_id)
    family = solution["template"] if solution else f"level_{_difficulty(path.parent)}"
    payload = {
        "root": root,
        "scenario": scenario_of(task_id),
        "instruction": specs["instruction"],
        "supervisor": specs["supervisor"],
        "twin": solution is not None,
    }
    return Task(task_id, BENCHMARK, split, family, payload)


def _difficulty(folder: pathlib.Path) -> Any:
    path = folder / "ground_truth" / "metadata.json"
    return json.loads(path.read_text()).get("difficulty", "unknown") if path.exists() else "unknown"


@functools.lru_cache(maxsize=8)
def _solutions(root: str) -> dict[str, dict[str, Any]]:
    path = pathlib.Path(root, SOLUTIONS)
    return json.loads(path.read_text()) if path.exists() else {}
