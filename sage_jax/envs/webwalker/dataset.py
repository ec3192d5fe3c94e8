"""Reads the public WebWalkerQA questions (680, Apache-2.0) in each of the column spellings they are found in."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from sage_jax.errors import DataError
from sage_jax.types import Task

# Field -> accepted columns; the last group may also lie inside "info".
_NAMES = {
    "question": ("question", "Question"),
    "answer": ("answer", "Answer"),
    "root_url": ("root_url", "Root_Url", "root"),
}
_INFO = {
    "type": ("type",),
    "difficulty": ("difficulty_level", "difficulty"),
    "domain": ("domain",),
    "lang": ("lang",),
    "source_website": ("source_website",),
    "golden_path": ("golden_path",),
}
TYPES = ("single_source", "multi_source")
DIFFICULTIES = ("easy", "medium", "hard")


def read_questions(path: str | os.PathLike[str], *, split: str = "test") -> list[Task]:
    """Reads questions as tasks; the family is "type-difficulty", by which results are reported.

    Args:
      path: a JSON list, JSON lines, or a parquet file.
      split: name given to the tasks.

    Raises:
      DataError: the file is missing or unreadable, or a question lacks a field; names file, question and field.
    """
    path = pathlib.Path(path)
    rows = _rows(path)
    if not rows:
        raise DataError(f"{path}: holds no question")
    return [_task(row, path, number, split) for number, row in enumerate(rows)]


def _task(row: Any, path: pathlib.Path, number: int, split: str) -> Task:
    if not isinstance(row, Mapping):
        raise DataError(f"{path}: question {number} is no object but {type(row).__name__}")
    info = row.get("info") or {}
    if isinstance(info, str):
        info = _parse(info, f"{path}: question {number}: info")
    values = {field: _pick(row, names) for field, names in _NAMES.items()}
    values |= {field: _pick(info, names) or _pick(row, names) for field, names in _INFO.items()}
    for field in ("question", "answer", "root_url"):
        if not isinstance(values[field], str) or not values[field].strip():
            raise DataError(f"{path}: question {number} has no {field} (columns: {', '.join(map(str, row))})")
    for field, known in {"type": TYPES, "difficulty": DIFFICULTIES}.items():
        if values[field] not in known:
            raise DataError(f"{path}: question {number}: {field}={values[field]!r}; expected {' or '.join(known)}")
    for field in ("source_website", "golden_path"):
        value = values[field]
        values[field] = [value] if isinstance(value, str) else list(value if value is not None else ())
    return Task(
        id=f"webwalker-{split}-{number:04d}",
        benchmark="webwalker",
        split=split,
        family=f"{values['type']}-{values['difficulty']}",
        payload={key: value if value is not None else "" for key, value in values.items()},
    )


def _rows(path: pathlib.Path) -> list[Any]:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path).to_pylist()
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if path.suffix == ".jsonl":
        return [_parse(line, f"{path}: line {n + 1}") for n, line in enumerate(text.splitlines()) if line.strip()]
    rows = _parse(text, str(path))
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a JSON list of questions, found {type(rows).__name__}")
    return rows


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON: {error}") from error


def _pick(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
