"""The state of a lite world: tables of one person, and what has changed since the start."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from sage_jax.envs.appworld.twin.base import Change, Person, Row, TwinTask

UNWATCHED = {"order_index"}


class State:
    """Rows by table and id. `supervisor` holds what the agent may know of the person, and the task's outcome."""

    def __init__(self, person: Person, shared: Mapping[str, Sequence[Row]], task: TwinTask) -> None:
        """Fills the tables."""
        self.person, self.task = person, task
        self.tables: dict[str, dict[int, Row]] = {}
        self.completed: Row | None = None  # {"status", "answer"} once the task was completed
        for source in (shared, person.rows):
            for model, rows in source.items():
                for row in rows:
                    self.insert(model, **self._resolved(row))
        self._start = copy.deepcopy(self.tables)

    def insert(self, model: str, **row: Any) -> int:
        """Adds a row; returns its id, which is never used again."""
        table = self.tables.setdefault(model, {})
        number = max([*table, *getattr(self, "_start", {}).get(model, {}), 0]) + 1
        table[number] = copy.deepcopy(row)
        return number

    def find(self, model: str, **fields: Any) -> list[tuple[int, Row]]:
        """Returns the rows whose fields have these values."""
        rows = self.tables.get(model, {}).items()
        return [(number, row) for number, row in rows if all(row.get(k) == v for k, v in fields.items())]

    def tests(self) -> dict[str, bool]:
        """Returns the tests of the task, by requirement: the same that the engine's evaluation makes."""
        outcome = self.completed or {"status": None, "answer": None}
        tests = {
            "the task was completed": outcome["status"] == "success",
            "the answer is right": self.completed is not None and same_answer(outcome["answer"], self.task.answer),
        }
        left = self._changes()
        for number, change in enumerate(self.task.changes, start=1):
            matching = [entry for entry in left if self._fits(entry, change)]
            tests[f"change {number} was made"] = bool(matching)
            if matching:
                left.remove(matching[0])
        tests["nothing else changed"] = not left
        return tests

    def _resolved(self, row: Row) -> Row:
        """Returns a generated row with the ids of the rows that it names."""
        row = dict(row)
        for name, model, field in (("project", "todoist.Project", "name"), ("song", "spotify.Song", "title")):
            if name in row:
                row[f"{name}_id"] = self.find(model, **{field: row.pop(name)})[0][0]
        if "artist" in row:
            row["artist_ids"] = [self.find("spotify.Artist", name=row.pop("artist"))[0][0]]
        return row

    def _changes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for model in sorted({*self._start, *self.tables}):
            before, after = self._start.get(model, {}), self.tables.get(model, {})
            for number in sorted({*before, *after}):
                old, new = before.get(number), after.get(number)
                entry = {"model": model, "old": old, "new": new}
                if old is None:
                    found.append({**entry, "kind": "added", "fields": set()})
                elif new is None:
                    found.append({**entry, "kind": "removed", "fields": set()})
                else:
                    fields = {k for k in {*old, *new} if old.get(k) != new.get(k)} - UNWATCHED
                    if fields:
                        found.append({**entry, "kind": "updated", "fields": fields})
        return found

    def _fits(self, entry: Mapping[str, Any], change: Change) -> bool:
        if (entry["model"], entry["kind"]) != (change.model, change.kind):
            return False
        told = entry["new"] if change.kind == "added" else entry["old"]
        if any(told.get(name) != self._value(value) for name, value in change.where.items()):
            return False
        if change.kind != "updated":
            return True
        return entry["fields"] == set(change.to) and all(entry["new"][name] == v for name, v in change.to.items())

    def _value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = {key: text for key, text in value.items() if key != "model"}
        return self.find(value["model"], **fields)[0][0]


def same_answer(given: Any, right: Any) -> bool:
    """Whether an answer is right: numbers as numbers, texts without regard to case and outer space."""
    if right is None or given is None:
        return given is right
    try:
        return abs(float(given) - float(right)) < 1e-9
    except (TypeError, ValueError):
        return str(given).strip().casefold() == str(right).strip().casefold()
