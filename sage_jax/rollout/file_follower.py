"""Follows skills in the generated worlds of envs/gaia: files, pages, and what is to be made of them.

It reads the file that a question names without being told. For the rest it needs steps:

    search pages      ask the search for a page, and open what it finds first
    guess address     open the address that the page's title suggests; it does so only where it does not search
    count rows | list all | multiply values | subtract values | compare values
                      what to do with what was found; without the right one it answers with the first thing it found

It believes every page. Whether the search or the address leads to the right one is for the skill to say.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence

from sage_jax.rollout.follower_llm import GIVE_UP, FollowerLlm, action

STEPS = (
    "search pages", "guess address", "count rows", "list all", "multiply values", "subtract values", "compare values",
)  # fmt: skip
_FILE = re.compile(r"\b(?:staff|sales)\.\w+")
_ROOT = re.compile(r"^The pages begin at (\S+)$", re.M)
_HEADING = re.compile(r"^# (.+?)$", re.M)
_FACT = re.compile(r"^\| (?P<key>[A-Z].*?) \| (?P<value>.+?) \|\s*$", re.M)
_PREFIX = "Observation: "
Row = Mapping[str, str]
Facts = Sequence[Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class _Ask:
    """A kind of question.

    Attributes:
      pattern: of its text.
      step: what it takes beside pages, "" for nothing.
      titles: (rows, the pattern's groups) -> pages that are needed.
      right: (rows, groups, facts of the pages) -> the answer with the step.
      first: the same -> the answer without it.
    """

    pattern: re.Pattern[str]
    step: str
    titles: Callable[[Sequence[Row], Row], list[str]]
    right: Callable[[Sequence[Row], Row, Facts], str]
    first: Callable[[Sequence[Row], Row, Facts], str]


class FileFollower(FollowerLlm):
    """Reads files, finds pages, calculates."""

    known = STEPS

    def next(self, question: str, observations: Sequence[str], calls: Sequence[str], steps: set[str]) -> str:
        """Returns the next call or the answer (see `FollowerLlm.next`)."""
        found = next(((ask, match) for ask in _ASKS if (match := ask.pattern.search(question))), None)
        if found is None:
            return GIVE_UP
        ask, groups = found[0], found[1].groupdict()
        if not calls:
            return action("read_file", _FILE.search(question)[0])
        texts = [text.removeprefix(_PREFIX) for text in observations[1:]]
        rows = _rows(texts[0])
        titles = ask.titles(rows, groups) if rows else []
        pages = [_HEADING.match(text) and (_HEADING.match(text)[1], dict(_FACT.findall(text))) for text in texts[1:]]
        facts = dict(page for page in pages if page)
        for title in titles:
            if title not in facts:
                root = _ROOT.search(observations[0])[1]
                return _look_up(title, root, calls, texts, steps) or GIVE_UP
        answer = ask.right if not ask.step or ask.step in steps else ask.first
        return f"FINAL ANSWER: {answer(rows, groups, [facts[title] for title in titles])}" if rows else GIVE_UP


def _look_up(title: str, root: str, calls: Sequence[str], texts: Sequence[str], steps: set[str]) -> str | None:
    """Returns the next call on the way to a page; None when there is none left."""
    if "search pages" in steps:
        if title not in calls:
            return action("search", title)
        hits = (line.split(" | ") for line in texts[calls.index(title)].splitlines())
        address = next((hit[1] for hit in hits if hit[0] == title and len(hit) > 1), None)
    elif "guess address" in steps:
        address = f"{root}{title.lower().replace(' ', '-')}.html"
    else:
        address = None
    return None if address is None or address in calls else action("open_page", address)


def _rows(text: str) -> list[Row]:
    """Returns the rows of a file as the reader shows it: JSON, "a | b" under a head, or "a: b; c: d"."""
    if text.startswith("[\n"):
        return [{key: str(value) for key, value in row.items()} for row in json.loads(text)]
    lines = text.splitlines()
    if not lines or text.startswith("["):  # what went wrong
        return []
    if " | " in lines[0]:
        head = lines[0].split(" | ")
        return [dict(zip(head, line.split(" | "), strict=True)) for line in lines[1:]]
    cells = ([cell.partition(": ") for cell in line.split("; ")] for line in lines)
    return [{key: value for key, _, value in row} for row in cells]


def _of_team(rows: Sequence[Row], groups: Row) -> list[Row]:
    return [row for row in rows if row["team"] == groups["team"]]


def _person(rows: Sequence[Row], groups: Row) -> Row:
    return next(row for row in rows if row["name"] == groups["name"])


def _best(rows: Sequence[Row], region: str) -> list[Row]:
    return sorted(rows, key=lambda row: -int(row[region]))


def _two(rows: Sequence[Row], groups: Row) -> list[str]:
    return [f"Product {row['product']}" for row in _best(rows, groups["region"])[:2]]


def _sold(rows: Sequence[Row], product: str, region: str) -> int:
    return next(int(row[region]) for row in rows if row["product"] == product)


def _difference(rows: Sequence[Row], groups: Row, facts: Facts) -> str:
    units = [int(row[groups["region"]]) for row in _best(rows, groups["region"])[:2]]
    first, second = (count * int(fact["Price"]) for count, fact in zip(units, facts, strict=True))
    return str(abs(first - second))


def _dearer(rows: Sequence[Row], groups: Row, facts: Facts) -> str:
    names = [row["product"] for row in _best(rows, groups["region"])[:2]]
    return max(zip(names, facts, strict=True), key=lambda pair: (int(pair[1]["Price"]), pair[0]))[0]


def _no_page(rows: Sequence[Row], groups: Row) -> list[str]:
    return []


def _price(rows: Sequence[Row], groups: Row, facts: Facts) -> str:
    return facts[0]["Price"]


_REGION = r"in region (?P<region>\w+)"
_ASKS = (
    _Ask(
        re.compile(r"how many people are in team (?P<team>\w+)\?"),
        "count rows",
        _no_page,
        lambda rows, groups, _: str(len(_of_team(rows, groups))),
        lambda rows, groups, _: _of_team(rows, groups)[0]["name"],
    ),
    _Ask(
        re.compile(r"in which city does (?P<name>.+?) work\?"),
        "",
        _no_page,
        lambda rows, groups, _: _person(rows, groups)["city"],
        lambda rows, groups, _: _person(rows, groups)["city"],
    ),
    _Ask(
        re.compile(r"in which cities do people of team (?P<team>\w+) work\?"),
        "list all",
        _no_page,
        lambda rows, groups, _: ", ".join(sorted({row["city"] for row in _of_team(rows, groups)})),
        lambda rows, groups, _: _of_team(rows, groups)[0]["city"],
    ),
    _Ask(
        re.compile(rf"What was the revenue of (?P<product>\w+) {_REGION}\?"),
        "multiply values",
        lambda _, groups: [f"Product {groups['product']}"],
        lambda rows, groups, facts: str(_sold(rows, groups["product"], groups["region"]) * int(facts[0]["Price"])),
        _price,
    ),
    _Ask(
        re.compile(r"Who leads the team that (?P<name>.+?) belongs to\?"),
        "",
        lambda rows, groups: [f"Team {_person(rows, groups)['team']}"],
        lambda _, __, facts: facts[0]["Lead"],
        lambda _, __, facts: facts[0]["Lead"],
    ),
    _Ask(
        re.compile(rf"Which product sold the most units {_REGION} "),
        "list all",
        lambda rows, groups: _two(rows, groups)[:1],
        lambda _, __, facts: f"{facts[0]['Maker']}, {facts[0]['Launch year']}",
        lambda _, __, facts: facts[0]["Maker"],
    ),
    _Ask(
        re.compile(rf"the two products with the most units sold {_REGION} in .+? By how much do their revenues"),
        "subtract values",
        _two,
        _difference,
        _price,
    ),
    _Ask(
        re.compile(rf"the two products with the most units sold {_REGION} in .+?, which one has the higher price"),
        "compare values",
        _two,
        _dearer,
        _price,
    ),
    _Ask(
        re.compile(rf"the launch years of the two products with the most units sold {_REGION} "),
        "list all",
        _two,
        lambda _, __, facts: ", ".join(sorted(fact["Launch year"] for fact in facts)),
        lambda _, __, facts: facts[0]["Launch year"],
    ),
)


def step_for(question: str) -> str:
    """Returns the step that a question's words call for, "" for none."""
    return next((ask.step for ask in _ASKS if ask.pattern.search(question)), "")
