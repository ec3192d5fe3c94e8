"""Follows skills on the generated English websites of envs/webwalker.

    open sections     look into the sections named in the navigation
    open groups       look into groups, and behind buttons that all read "Read more"
    open archive      look into the archive, and before all else
    add values | compare values | list both     what to do with two values; without one of them only the first counts

It never looks at the year of a page: whether the archive is the place to look is for the skill to say.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from sage_jax.rollout.follower_llm import GIVE_UP, FollowerLlm, action

STEPS = ("open sections", "open groups", "open archive", "add values", "compare values", "list both")
_PAGE = re.compile(r"^# (?P<name>.+?)$\s+^Edition (?P<year>\d+)$(?P<rows>.*?)^Buttons:", re.M | re.S)
_ROW = re.compile(r"^\| (?P<key>.+?) \| (?P<value>.+?) \|\s*$", re.M)
_HEADING = re.compile(r"^### (.+)$", re.M)
_BUTTON = re.compile(r"^- (?P<text>.+)$", re.M)
_DATED = re.compile(r"(?P<name>.+) \d{4}")
_NOT_SECTIONS = ("Home", "Archive", "Other language", "Members area", "Old timetable")
_ITEM = r"(?:Workshop|Course|Project|Update) \w+"
_X, _Y, _YEAR = rf"(?P<x>{_ITEM})", rf"(?P<y>{_ITEM})", r"in the \d+ edition"
_FORMS = (
    ("total", re.compile(rf"Add up the (?P<a>.+?) of {_X} and of {_Y} {_YEAR}")),
    ("larger", re.compile(rf"Which has the larger (?P<a>.+?) {_YEAR}, {_X} or {_Y}\?")),
    ("both", re.compile(rf"What is the (?P<a>.+?) of {_X}, and what is the .+? of {_Y}, {_YEAR}")),
    ("single", re.compile(rf"What is the (?P<a>.+?) of {_X} {_YEAR}")),
)
STEP_OF = {"total": "add values", "larger": "compare values", "both": "list both"}


@dataclasses.dataclass(frozen=True)
class _Ask:
    """A question as understood."""

    form: str
    attribute: str
    names: tuple[str, ...]


class SiteFollower(FollowerLlm):
    """Walks websites by their buttons."""

    known = STEPS

    def next(self, question: str, observations: Sequence[str], calls: Sequence[str], steps: set[str]) -> str:
        """Returns the next click or the answer (see `FollowerLlm.next`)."""
        ask = _understand(question)
        if ask is None:
            return GIVE_UP
        names = ask.names if ask.form == "single" or STEP_OF[ask.form] in steps else ask.names[:1]
        seen, last = _facts(observations, ask)
        missing = [name for name in names if name not in seen]
        # What was walked for the last item that was found says nothing of where the next one is.
        button = None
        if missing and last == len(observations) - 1 > 0:
            button = "Home"  # the next item is looked for from the start
        elif missing:
            button = _choose(observations[last:], calls[last:], missing, steps)
        if button is not None:
            return action("visit_page", button)
        return f"FINAL ANSWER: {_answer(ask, [seen[name] for name in names if name in seen], names)}"


def _understand(question: str) -> _Ask | None:
    for form, pattern in _FORMS:
        if found := pattern.search(question):
            parts = found.groupdict()
            names = (parts["x"], parts["y"]) if "y" in parts else (parts["x"],)
            return _Ask(form, parts["a"], names)
    return None


def _facts(observations: Sequence[str], ask: _Ask) -> tuple[Mapping[str, str], int]:
    """Returns the value of each name from the first page that told it, and the place of the last such page (or 0)."""
    values: dict[str, str] = {}
    last = 0
    for place, text in enumerate(observations):
        name, rows = _page(text)
        if name in ask.names and name not in values and ask.attribute in rows:
            values[name], last = rows[ask.attribute], place
    return values, last


@functools.lru_cache(maxsize=4096)  # every turn reads all pages of the conversation
def _page(text: str) -> tuple[str, Mapping[str, str]]:
    """Returns name and facts of an item's page; an empty name for another."""
    page = _PAGE.search(text)
    return (page["name"], dict(_ROW.findall(page["rows"]))) if page else ("", {})


def _choose(observations: Sequence[str], clicks: Sequence[str], missing: Sequence[str], steps: set[str]) -> str | None:
    """Returns the next button: an item that is asked for, else a place where one may be; None gives up."""
    page, buttons = observations[-1], _buttons(observations[-1])
    if "open archive" in steps:
        button = _in_archive(buttons, clicks, missing, "open groups" in steps)
        if button is not None:
            return button
    for name in missing:
        if name in buttons:
            return name
    sections = [button for button in buttons[:5] if button not in _NOT_SECTIONS]
    if "open groups" in steps:
        headings = _HEADING.findall(page)
        for name in missing:
            if name in headings:
                place = headings.index(name)
                return "Read more" if place == 0 else f"Read more ({place + 1})"
        section, group = _next_group(observations, clicks, sections)
        if group is not None:
            return group if group in buttons else section
    if "open sections" in steps:
        return next((button for button in sections if button not in clicks), None)
    return None


def _in_archive(buttons: Sequence[str], clicks: Sequence[str], missing: Sequence[str], groups: bool) -> str | None:
    """Returns the next button in or towards the archive; None when it was looked through."""
    dated = [button for button in buttons if _DATED.fullmatch(button)]
    for button in dated:
        if _DATED.fullmatch(button)["name"] in missing:
            return button
    if "Archive" not in clicks:
        return "Archive"
    return next((b for b in dated if groups and b.startswith("Group ") and b not in clicks), None)


def _next_group(
    observations: Sequence[str], clicks: Sequence[str], sections: Sequence[str]
) -> tuple[str | None, str | None]:
    """Returns the section that was opened last and a group of it that was not looked into; None when there is none."""
    section, groups, opened = None, [], set()
    for click, text in zip(clicks, observations[1:], strict=False):
        if click in sections:
            if click != section:
                section, opened = click, set()
            groups = [button for button in _buttons(text) if button.startswith("Group ")]
        elif click.startswith("Group "):
            opened.add(click)
    return section, next((group for group in groups if group not in opened), None)


@functools.lru_cache(maxsize=4096)
def _buttons(observation: str) -> list[str]:
    return _BUTTON.findall(observation.rpartition("Buttons:")[2])


def _answer(ask: _Ask, values: Sequence[str], names: Sequence[str]) -> str:
    if not values:
        return "unknown"
    if len(values) < 2:
        return values[0]
    if ask.form == "total":
        return str(sum(int(value) for value in values))
    if ask.form == "larger":
        return max(zip(values, names, strict=True), key=lambda pair: int(pair[0]))[1]
    return "; ".join(values)
