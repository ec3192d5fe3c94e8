"""Reads what a run left in its folder into one object; the report is made from it and from nothing else."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from sage_jax.errors import DataError
from sage_jax.metrics import EvalRow, read_jsonl, read_rows
from sage_jax.skills import BankEdit, SkillBank


@dataclasses.dataclass(frozen=True)
class RunData:
    """A run as its folder tells it. Parts that the run has not written (yet) are empty.

    Attributes:
      folder: the run's folder.
      config: resolved flat configuration.
      starts: one record per start (time, command, versions, git revision).
      metrics: lines of metrics.jsonl.
      evals: tag -> rows, in the order in which they were written ("before" first).
      edits: log of the skill bank.
      trajectories: records of the last round's trajectories.
      last_round: number of that round, None without one.
    """

    folder: pathlib.Path
    config: dict[str, Any]
    starts: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    evals: dict[str, list[EvalRow]]
    edits: tuple[BankEdit, ...]
    trajectories: list[dict[str, Any]]
    last_round: int | None

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Returns (steps, values) of a metric; lines without a finite value are left out."""
        points = [(line["step"], line[name]) for line in self.metrics if line.get(name) is not None]
        return [step for step, _ in points], [value for _, value in points]

    def names(self, prefix: str) -> list[str]:
        """Returns the names of the metrics that begin with a prefix and have a value, sorted."""
        found = {name for line in self.metrics for name, value in line.items() if value is not None}
        return sorted(name for name in found if name.startswith(prefix))


def load_run(run_dir: str | pathlib.Path) -> RunData:
    """Reads a run folder.

    Raises:
      DataError: the folder is no run's (it has no config.json), or a file in it is broken; names the file.
      SkillError: bank.json does not replay.
    """
    folder = pathlib.Path(run_dir)
    config = _read_json(folder / "config.json")
    if config is None:
        raise DataError(f"{folder} is no run folder: it has no config.json")
    bank = _read_json(folder / "bank.json")
    eval_paths = sorted((folder / "eval").glob("*.json"), key=_eval_order)
    rounds = sorted((folder / "rounds").glob("*.jsonl"))
    return RunData(
        folder=folder,
        config=config,
        starts=_lines(folder / "starts.jsonl"),
        metrics=_lines(folder / "metrics.jsonl"),
        evals={path.stem: read_rows(path) for path in eval_paths},
        edits=() if bank is None else SkillBank.restore(bank).log,
        trajectories=read_jsonl(rounds[-1]) if rounds else [],
        last_round=int(rounds[-1].stem) if rounds else None,
    )


def _eval_order(path: pathlib.Path) -> tuple[int, str]:
    return {"before": 0, "after": 2}.get(path.stem, 1), path.stem


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return read_jsonl(path) if path.exists() else []


def _read_json(path: pathlib.Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}") from error
