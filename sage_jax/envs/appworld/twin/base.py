"""What a generated world is made of. Plain data: the same world is put into the real engine and into `lite`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Change:
    """One change that a task asks for. All changes of a task together are all that may change.

    Attributes:
      model: "simple_note.Note", as the engine names its tables.
      kind: "added", "updated" or "removed".
      where: fields that tell the row: before the change, or, of an added row, after it.
      to: fields that an update sets; no other field may change, `updated_at` apart.
    """

    model: str
    kind: str
    where: Row
    to: Row = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Solution:
    """A scripted expert's code.

    Attributes:
      functions: definitions, the same for the three tasks of a scenario: what a skill library should come to hold.
      call: an expression that does the work and gives the answer, None when there is nothing to answer.
    """

    functions: str
    call: str

    def turns(self) -> tuple[str, ...]:
        """Returns the code of the two turns that solve the task: define and call, then complete."""
        return (f"{self.functions}\n\nanswer = {self.call}\nprint(answer)", COMPLETE)

    def turns_with_library(self) -> tuple[str, ...]:
        """Returns the turns for an agent that has the functions already."""
        return (f"answer = {self.call}\nprint(answer)", COMPLETE)


COMPLETE = "apis.supervisor.complete_task(answer=answer)"


@dataclasses.dataclass(frozen=True)
class TwinTask:
    """One task: its words, its check and its solution.

    Attributes:
      id: "<scenario>_<1..3>".
      person: index of the person whose supervisor gives the task.
      instruction: what is asked.
      difficulty: 1 to 3.
      answer: the right answer, None when none is asked.
      changes: all that must change.
      solution: of the scripted expert.
    """

    id: str
    person: int
    instruction: str
    difficulty: int
    answer: int | float | str | None
    changes: tuple[Change, ...]
    solution: Solution


@dataclasses.dataclass
class Person:
    """A person and what is in their apps; templates add to it what their tasks need.

    Attributes:
      rows: rows by "app.Model", in the engine's field names; `user_id` is filled in when the rows are inserted.
    """

    first_name: str
    last_name: str
    email: str
    phone_number: str
    password: str
    rows: dict[str, list[Row]] = dataclasses.field(default_factory=dict)

    def add(self, model: str, **row: Any) -> None:
        """Adds a row."""
        self.rows.setdefault(model, []).append(row)


@dataclasses.dataclass(frozen=True)
class Draft:
    """A task without its place in the world: what a template makes."""

    instruction: str
    answer: int | float | str | None
    call: str
    changes: tuple[Change, ...] = ()


@dataclasses.dataclass(frozen=True)
class Template:
    """A kind of scenario.

    Attributes:
      name: unique.
      apps: the apps it needs, the main one first.
      difficulty: 1 to 3.
      functions: the expert's definitions, `OPEN` and `PAGES` apart.
      make: fills a person's apps and returns three drafts.
    """

    name: str
    apps: tuple[str, ...]
    difficulty: int
    functions: str
    make: Callable[[Person, random.Random], tuple[Draft, ...]]


# Logs in with what the supervisor knows.
OPEN = """def open_app(app):
    passwords = {account["account_name"]: account["password"] for account in apis.supervisor.show_account_passwords()}
    profile = apis.supervisor.show_profile()
    username = profile["phone_number"] if app == "phone" else profile["email"]
    return apis[app].login(username=username, password=passwords[app])["access_token"]"""

# Reads all pages of a list.
PAGES = """def all_pages(api, **arguments):
    found, page = [], 0
    while True:
        batch = api(page_index=page, **arguments)
        if not batch:
            return found
        found += batch
        page += 1"""


def as_json(task: TwinTask) -> Mapping[str, Any]:
    """Returns the task as plain data."""
    return dataclasses.asdict(task)
