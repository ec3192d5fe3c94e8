"""A task LLM for the local scale: a program that does what the words of a skill say, and not always.

It is no language model. It stands where a frozen LLM stands, behind the same protocol, and knows nothing but the
messages it is sent: it walks the generated English websites of envs/webwalker by the steps that the skill names, skips
some of them at random, and without a step does not do what the step is for. So a skill decides what it solves, and an
editor can be trained in minutes on a CPU.

    open sections     look into the sections named in the navigation
    open groups       look into groups, and behind buttons that all read "Read more"
    check edition     do not believe a page of another year
    add values | compare values | list both     what to do with two values; without one of them only the first counts
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence

from sage_jax.rollout.task_llm import Budget, ChatRequest, Reply, Spending
from sage_jax.seeding import derive_seed

STEPS = ("open sections", "open groups", "check edition", "add values", "compare values", "list both")
_PAGE = re.compile(r"^# (?P<name>.+?)$\s+^Edition (?P<year>\d+)$(?P<rows>.*?)^Buttons:", re.M | re.S)
_ROW = re.compile(r"^\| (?P<key>.+?) \| (?P<value>.+?) \|\s*$", re.M)
_HEADING = re.compile(r"^### (.+)$", re.M)
_BUTTON = re.compile(r"^- (?P<text>.+)$", re.M)
_QUESTION = re.compile(r"^Question: (?P<text>.+)$", re.M)
_CALL = re.compile(r"Action Input: (.*)")
_NOT_SECTIONS = ("Home", "Archive", "Other language", "Members area", "Old timetable")
_ITEM = r"(?:Workshop|Course|Project|Update) \w+"
_X, _Y, _YEAR = rf"(?P<x>{_ITEM})", rf"(?P<y>{_ITEM})", r"in the (?P<year>\d+) edition"
_FORMS = (
    ("total", re.compile(rf"Add up the (?P<a>.+?) of {_X} and of {_Y} {_YEAR}")),
    ("larger", re.compile(rf"Which has the larger (?P<a>.+?) {_YEAR}, {_X} or {_Y}\?")),
    ("both", re.compile(rf"What is the (?P<a>.+?) of {_X}, and what is the .+? of {_Y}, {_YEAR}")),
    ("single", re.compile(rf"What is the (?P<a>.+?) of {_X} {_YEAR}")),
)
_STEP_OF = {"total": "add values", "larger": "compare values", "both": "list both"}


@dataclasses.dataclass(frozen=True)
class _Ask:
    """A question as understood."""

    form: str
    attribute: str
    names: tuple[str, ...]
    year: str


class FollowerLlm:
    """Follows skills on the generated English websites (`TaskLlm`)."""

    def __init__(self, *, slip: float = 0.05, budget: Budget | None = None):
        """Makes a follower that overlooks each step of a skill with probability `slip`, anew in every turn."""
        self._slip, self.spending = slip, Spending(budget)

    async def complete(self, request: ChatRequest) -> Reply:
        """Returns the next action, or the answer (see `TaskLlm.complete`)."""
        self.spending.begin()
        text = self._next(request)
        tokens = sum(len(str(message["content"]).split()) for message in request.messages)
        reply = Reply(text, prompt_tokens=tokens, completion_tokens=len(text.split()))
        self.spending.add(reply)
        return reply

    async def close(self) -> None:
        """Closes nothing."""

    def _next(self, request: ChatRequest) -> str:
        system, *talk = (str(message["content"]) for message in request.messages)
        observations, turns = talk[0::2], talk[1::2]
        ask = _understand(_QUESTION.search(observations[0])["text"])
        if ask is None:
            return "FINAL ANSWER: unknown"
        steps = self._steps(system.rpartition("\nWhen: ")[2], request.seed)
        clicks = [_CALL.search(turn)[1] for turn in turns]
        names = ask.names if ask.form == "single" or _STEP_OF[ask.form] in steps else ask.names[:1]
        seen, last = _facts(observations, ask, check="check edition" in steps)
        missing = [name for name in names if name not in seen]
        # What was walked for the last item that was found says nothing of where the next one is.
        button = None
        if missing and last == len(observations) - 1 > 0:
            button = "Home"  # the next item is looked for from the start
        elif missing:
            button = _choose(observations[last:], clicks[last:], missing, steps, ask.year)
        if button is not None:
            return f"Thought: look further.\nAction: visit_page\nAction Input: {button}"
        return f"FINAL ANSWER: {_answer(ask, [seen[name] for name in names if name in seen], names)}"

    def _steps(self, skill: str, seed: int) -> set[str]:
        """Returns the steps of the skill that are obeyed in this turn."""
        words, rng = " ".join(skill.lower().split()), random.Random(derive_seed(seed, "follower"))
        return {step for step in STEPS if rng.random() >= self._slip and step in words}


def _understand(question: str) -> _Ask | None:
    for form, pattern in _FORMS:
        if found := pattern.search(question):
            parts = found.groupdict()
            names = (parts["x"], parts["y"]) if "y" in parts else (parts["x"],)
            return _Ask(form, parts["a"], names, parts["year"])
    return None


def _facts(observations: Sequence[str], ask: _Ask, *, check: bool) -> tuple[Mapping[str, str], int]:
    """Returns the value of each name from the first page that told it, and the place of the last such page (or 0).

    Without the check a page of any year is believed.
    """
    values: dict[str, str] = {}
    last = 0
    for place, text in enumerate(observations):
        page = _PAGE.search(text)
        if (
            page
            and page["name"] in ask.names
            and page["name"] not in values
            and (page["year"] == ask.year or not check)
        ):
            rows = dict(_ROW.findall(page["rows"]))
            if ask.attribute in rows:
                values[page["name"]], last = rows[ask.attribute], place
    return values, last


def _choose(
    observations: Sequence[str], clicks: Sequence[str], missing: Sequence[str], steps: set[str], year: str
) -> str | None:
    """Returns the next button: an item that is asked for, else a place where one may be; None gives up."""
    page, buttons = observations[-1], _buttons(observations[-1])
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
    if "check edition" not in steps:  # it falls for last year's pages, which are one click away
        for name in missing:
            if f"{name} {int(year) - 1}" in buttons:
                return f"{name} {int(year) - 1}"
        if "Archive" in buttons and "Archive" not in clicks:
            return "Archive"
    if "open sections" in steps:
        return next((button for button in sections if button not in clicks), None)
    return None


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
