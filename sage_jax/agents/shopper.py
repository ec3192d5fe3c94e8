"""A scripted shopper that reads only text, for the twin's instructions: it thinks in short sentences and follows hints.

Its thoughts spell out the one fact that each action depends on, so that a small model can imitate them. What it puts
into a search follows a hint of the skills it is shown, else is drawn at random, so that imitation leaves the choice
open and reinforcement learning can make it.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import re

from sage_jax.envs.webshop.twin import DEPARTMENTS, OPTIONS
from sage_jax.errors import DataError

QUERIES = ("type", "attributes", "options")  # what a search names: the type; and the attributes; and the options
_HINT = re.compile(r"search with (type|attributes|options)")
_LIMIT = re.compile(r"price lower than (\d+)")
_OPTION = re.compile(rf"({'|'.join(OPTIONS)}): ([a-z0-9 ]+)")
_PHRASES = {
    name: {part: re.compile(rf"\b{part}\b") for part in (*department.types, *department.attributes)}
    for name, department in DEPARTMENTS.items()
}
_NO_LIMIT = 10**6


@dataclasses.dataclass(frozen=True)
class ShoppingGoal:
    """What an instruction asks for, as read from its words."""

    kind: str
    attributes: tuple[str, ...]
    options: dict[str, str]
    limit: int


def parse_instruction(text: str, family: str) -> ShoppingGoal:
    """Reads an instruction of the twin.

    Raises:
      DataError: no type of product of the department is named; official instructions are not read.
    """
    text = text.lower()
    department = DEPARTMENTS.get(family)
    options = {name: value.strip() for name, value in _OPTION.findall(text)}
    plain = _OPTION.sub("", text)
    found = [part for part, pattern in _PHRASES.get(family, {}).items() if pattern.search(plain)]
    kinds = [part for part in found if department and part in department.types]
    if not kinds:
        raise DataError(f"instruction {text[:200]!r} names no product of department {family!r}")
    attributes = tuple(part for part in found if part not in kinds)
    ordered = tuple(sorted(attributes, key=plain.index))
    limit = _LIMIT.search(text)
    return ShoppingGoal(max(kinds, key=len), ordered, options, int(limit[1]) if limit else _NO_LIMIT)


@dataclasses.dataclass(frozen=True)
class Listed:
    """One line of a page of results."""

    asin: str
    title: str
    low: float
    high: float


@dataclasses.dataclass
class _Memory:
    """What the shopper remembers between pages.

    Attributes:
      tried: searches so far, by what they name; the last is the one in use.
      rejected: ids of products that lack something.
      here: the product it opened.
      checked: whether its features were read.
      asking: whether the features page is what comes next.
      chosen: option values that were selected.
      leaving: whether the opened product was found wanting.
    """

    tried: list[str]
    rejected: set[str] = dataclasses.field(default_factory=set)
    here: Listed | None = None
    checked: bool = False
    asking: bool = False
    chosen: set[str] = dataclasses.field(default_factory=set)
    leaving: bool = False


class Shopper:
    """Plays one episode: `act(observation)` -> (thought, action). Reads the modes "text" and "compact"."""

    def __init__(self, first_observation: str, family: str, skills: str, rng: random.Random):
        """Reads the instruction. Raises DataError when it is none of the twin's."""
        self.goal = parse_instruction(first_observation, family)
        hinted = _HINT.findall(skills.lower())
        self.hint = hinted[-1] if hinted else None
        self.query = self.hint or rng.choice(QUERIES)
        self._memory = _Memory([self.query])
        self._before = self._memory

    def act(self, observation: str) -> tuple[str, str]:
        """Returns the thought and the next action after an observation (the first one included)."""
        parts = [part.strip() for part in re.split(r" \| | \[SEP\] ", observation)]
        if parts[0] == "Instruction:" and len(parts) > 3:
            parts = parts[2:]  # what is wanted is no feature of what is shown
        self._before, self._memory = self._memory, copy.deepcopy(self._memory)
        lower = [part.lower() for part in parts]
        if lower[-1] == "search":
            return self._search()
        if any(part.startswith("page ") for part in lower):
            return self._pick(parts, lower)
        if "buy now" in lower:
            return self._decide(lower)
        return self._check(lower)

    def override(self, action: str) -> None:
        """Takes note that `action` was played instead of the one just returned (noise to recover from)."""
        self._memory = copy.deepcopy(self._before)
        clicked = action.removeprefix("click[").removesuffix("]")
        for name, value in self.goal.options.items():
            if clicked in OPTIONS[name]:
                self._memory.chosen.discard(value)

    @property
    def last_query(self) -> str:
        """What the last search named."""
        return self._memory.tried[-1]

    def _search(self) -> tuple[str, str]:
        goal, query = self.goal, self.last_query
        words = [*goal.attributes, goal.kind] if query != "type" else [goal.kind]
        if query == "options":
            words += goal.options.values()
        hint = "skill : " if query == self.hint else ""
        return f"{hint}search with {query} .", f"search[{' '.join(words)}]"

    def _pick(self, parts: list[str], lower: list[str]) -> tuple[str, str]:
        goal, memory = self.goal, self._memory
        memory.here, memory.chosen = None, set()
        memory.checked = memory.asking = memory.leaving = False
        fitting = [
            item
            for item in read_results(parts)
            if goal.kind in item.title.lower() and item.low <= goal.limit and item.asin not in memory.rejected
        ]
        if fitting:
            best = max(fitting, key=lambda item: (len(self._seen(item.title)), item.high <= goal.limit))
            memory.here, seen = best, self._seen(best.title)
            need = " ".join(filter(None, ("need", " ".join(seen), goal.kind, f"under {goal.limit}")))
            return f"{need} . see {best.asin.lower()} .", f"click[{best.asin.lower()}]"
        if "next >" in lower:
            return "none here . next .", "click[next >]"
        left = [query for query in QUERIES if query not in memory.tried]
        memory.tried.append(left[0] if left else QUERIES[0])
        if not left:
            memory.rejected.clear()
        return "none left . search again .", "click[back to search]"

    def _decide(self, lower: list[str]) -> tuple[str, str]:
        """Chooses options, looks into the features, buys or leaves the product whose page this is."""
        goal, memory = self.goal, self._memory
        if memory.here is None or memory.leaving or memory.here.title.lower() not in lower:
            return "not this .", "click[< prev]"
        for name, value in goal.options.items():
            if value not in lower:
                memory.rejected.add(memory.here.asin)
                return f"need {name} {value} . none .", "click[< prev]"
        hidden = [attribute for attribute in goal.attributes if attribute not in self._seen(memory.here.title)]
        if hidden and not memory.checked:
            memory.asking = True
            return f"need {' '.join(hidden)} . check .", "click[features]"
        for name, value in goal.options.items():
            if value not in memory.chosen:
                memory.chosen.add(value)
                return f"need {name} {value} .", f"click[{value}]"
        return "all chosen . buy .", "click[buy now]"

    def _check(self, lower: list[str]) -> tuple[str, str]:
        """Reads the features page."""
        memory = self._memory
        if not memory.asking or memory.here is None:
            return "not this .", "click[< prev]"
        memory.asking, memory.checked = False, True
        missing = [wanted for wanted in self.goal.attributes if not any(wanted in part for part in lower)]
        if missing:
            memory.rejected.add(memory.here.asin)
            memory.leaving = True
            return f"need {' '.join(missing)} . none .", "click[< prev]"
        return f"see {' '.join(self.goal.attributes)} .", "click[< prev]"

    def _seen(self, title: str) -> list[str]:
        return [attribute for attribute in self.goal.attributes if attribute in title.lower()]


def read_results(parts: list[str]) -> list[Listed]:
    """Returns the products on a page of results, in its order."""
    return [
        Listed(asin, title, *_price_range(price))
        for asin, title, price in zip(parts, parts[1:], parts[2:], strict=False)
        if re.fullmatch(r"\$[\d.]+( to \$[\d.]+)?", price) and re.fullmatch(r"([A-Z]\d+)+", asin)
    ]


def _price_range(text: str) -> tuple[float, float]:
    prices = [float(price) for price in re.findall(r"[\d.]+", text)]
    return prices[0], prices[-1]


def query_skill(query: str) -> tuple[str, str]:
    """Returns (title, principle) of the skill that says what to search with."""
    return f"{query} first", f"search with {query}"


class ShopDemonstrator:
    """The shopper in an episode of a cold start, which half of the time is shown what to search with."""

    def __init__(self, observation: str, family: str, rng: random.Random):
        """Draws the hints. Raises DataError when the instruction is none of the twin's."""
        hints = rng.sample(QUERIES, rng.choice((0, 0, 1, 2)))
        self.skills = [query_skill(query) for query in hints]
        self._shopper = Shopper(observation, family, " ".join(principle for _, principle in self.skills), rng)
        self._family, self._rng = family, rng

    def act(self, observation: str) -> tuple[str, str]:
        """Returns the thought and the next action."""
        return self._shopper.act(observation)

    def review(self) -> tuple[str, dict]:
        """Returns the thought and the tool call of the review turn."""
        return shopper_review(self._shopper, self._family, self._rng)


def shopper_review(shopper: Shopper, family: str, rng: random.Random) -> tuple[str, dict]:
    """Returns the thought and the tool call of the review turn of an episode that was won.

    A hint that worked at once is kept; where another search found the product, that one is written down.
    """
    keep = {"name": "keep_skill", "arguments": {"reason": "nothing new"}}
    query = shopper.last_query
    thought = f"found with {query} ."
    if query == shopper.hint:
        return f"{thought} skill worked .", keep
    if shopper.hint is None and rng.random() < 0.2:
        return thought, keep
    title, principle = query_skill(query)
    arguments = {"title": title, "principle": principle, "when_to_apply": "to search"}
    if shopper.hint and rng.random() < 0.5:
        arguments = {"skill_id": query_skill(shopper.hint)[0], **arguments, "reason": f"found with {query}"}
        return f"{thought} not with {shopper.hint} .", {"name": "update_skill", "arguments": arguments}
    arguments = {"category": family, **arguments, "evidence": f"found with {query}"}
    return thought, {"name": "propose_skill", "arguments": arguments}
