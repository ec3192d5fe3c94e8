"""Reads a user's own copy of GAIA. It is gated and may not be passed on: nothing of it is in this project."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from sage_jax.errors import DataError
from sage_jax.types import Task

LEVELS = (1, 2, 3)
_COLUMNS = {"id": "task_id", "question": "Question", "level": "Level"}
_HIDDEN = "?"  # the truth of test questions


def read_gaia(folder: str | os.PathLike[str], split: str = "validation") -> list[Task]:
    """Reads the questions of a split; the family is "level1" to "level3".

    Args:
      folder: holds metadata.jsonl or a parquet file with the columns of the benchmark, and the questions' files. The
        layout of the hub, `2023/<split>/`, is found below it.
      split: "validation", or "test", whose truths are hidden ("answer" is then None).

    Raises:
      DataError: no such file, a broken line or row, a missing column, or a question's file that is not there.
    """
    folder = pathlib.Path(folder)
    places = [folder / "2023" / split, folder / split, folder]
    for place in places:
        for path in [place / "metadata.jsonl", *sorted(place.glob("metadata*.parquet"))]:
            if path.is_file():
                return [_task(row, path, number, split) for number, row in enumerate(_rows(path))]
    raise DataError(
        f"{folder}: holds no metadata.jsonl and no metadata*.parquet (looked in {', '.join(map(str, places))}); "
        "get your own copy of GAIA, see third_party/gaia"
    )


def _task(row: Any, path: pathlib.Path, number: int, split: str) -> Task:
    where = f"{path}: question {number}"
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: is no object")
    for column in _COLUMNS.values():
        if row.get(column) in (None, ""):
            raise DataError(f"{where}: column {column!r} is missing (columns: {', '.join(map(str, row))})")
    try:
        level = int(row["Level"])
    except (TypeError, ValueError):
        level = 0
    if level not in LEVELS:
        raise DataError(f"{where}: Level={row['Level']!r}; expected 1, 2 or 3")
    truth = row.get("Final answer")
    hidden = truth is None or str(truth).strip() in ("", _HIDDEN)
    files = {}
    if row.get("file_name"):
        name = pathlib.PurePosixPath(str(row["file_name"])).name
        file = path.parent / name
        if not file.is_file():
            raise DataError(f"{where}: its file {file} is missing")
        files[name] = str(file.absolute())
    return Task(
        id=f"gaia-{split}-{row['task_id']}",
        benchmark="gaia",
        split=split,
        family=f"level{level}",
        payload={
            "question": str(row["Question"]),
            "answer": None if hidden else str(truth),
            "level": level,
            "files": files,
        },
    )


def _rows(path: pathlib.Path) -> list[Any]:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path).to_pylist()
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}: line {number + 1} is not JSON: {error}") from error
    return rows
