"""A scripted household agent that reads only text, thinks in short sentences and can follow search hints.

It makes the traces that the small base model is pre-trained on (data/household.py) and the SFT episodes on the real
ALFWorld engine. Its thoughts spell out the one fact that each action depends on, so that a small model can imitate
them: what is needed, what is seen, which receptacle follows the last one in the room's list.
"""

from __future__ import annotations

import dataclasses
import random
import re

from sage_jax.errors import DataError

_GOALS = (
    (r"look at (?P<obj>\w+) under the (?P<dest>\w+)", "look"),
    (r"examine the (?P<obj>\w+) with the (?P<dest>\w+)", "look"),
    (r"put two (?P<obj>\w+) (?:in|on) (?P<dest>\w+)", "two"),
    (r"find two (?P<obj>\w+) and put them (?:in|on) (?P<dest>\w+)", "two"),
    (r"put a (?P<how>clean|hot|cool) (?P<obj>\w+) (?:in|on) (?P<dest>\w+)", "treat"),
    (r"(?P<how>clean|heat|cool) some (?P<obj>\w+) and put it (?:in|on) (?P<dest>\w+)", "treat"),
    (r"put (?:a|some) (?P<obj>\w+) (?:in|on) (?P<dest>\w+)", "pick"),
)
_DEVICES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_DONE_WORDS = {"clean": "clean", "heat": "hot", "cool": "cool"}
_THING = re.compile(r"an? ([a-z]+ \d+)")
_HINT = re.compile(r"start at ([a-z]+)")


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a task sentence asks for: `kind` is pick, two, look, clean, heat or cool."""

    kind: str
    obj: str
    dest: str


def parse_goal(task: str) -> Goal:
    """Reads a task sentence of the six ALFWorld families; DataError when it is none of them."""
    for pattern, kind in _GOALS:
        match = re.search(pattern, task.lower())
        if match:
            if kind == "treat":
                kind = {"hot": "heat"}.get(match["how"], match["how"])
            return Goal(kind, match["obj"], match["dest"])
    raise DataError(f"task sentence {task!r} is none of the six ALFWorld families")


def goal_of(first_observation: str) -> Goal:
    """Reads the goal that an episode's first observation ends with; DataError when it has none."""
    return parse_goal(first_observation.partition("Your task is to:")[2])


def list_things(text: str) -> list[str]:
    """Returns the "name number" pairs that an observation lists, in its order."""
    return _THING.findall(text.lower())


def hinted_types(skills: str) -> list[str]:
    """Returns the receptacle types that skill text says to start at, in the order of the text."""
    return _HINT.findall(skills.lower())


class HouseholdExpert:
    """Plays one episode: `act(observation)` -> (thought, action).

    Search follows the room's list from a starting point, around the end and on. The start is the first receptacle of
    the last hinted type that the room has; without such a hint it is drawn at random, so that imitation leaves the
    choice open and reinforcement learning can make it.
    """

    def __init__(self, first_observation: str, skills: str, rng: random.Random):
        self.goal = goal_of(first_observation)
        self.receptacles = list_things(first_observation.partition("Your task is to:")[0])
        if not self.receptacles:
            raise DataError(f"no receptacles in the first observation {first_observation[:200]!r}")
        self.found_in: list[str] = []  # receptacle types that held the target, for the review
        self.visited: list[str] = []
        self._seen: dict[str, str] = {}  # object -> receptacle it was last seen in
        self._here: str | None = None
        self._closed: dict[str, bool] = {}
        self._holding: str | None = None
        self._treated = False
        self._placed: list[str] = []
        types = [name.split()[0] for name in self.receptacles]
        hinted = [t for t in hinted_types(skills) if t in types]
        self.hints = frozenset(hinted)
        self.hint = hinted[-1] if hinted else None
        start = types.index(self.hint) if self.hint else rng.randrange(len(types))
        self._order = self.receptacles[start:] + self.receptacles[:start]
        self._next = self._resume_at = 0
        self._last_action = ""

    def act(self, observation: str) -> tuple[str, str]:
        """Returns the thought and the next action after an observation (the first one included)."""
        self._read(observation.lower())
        self._resume_at = self._next
        thought, action = self._decide()
        self._last_action = action
        return thought, action

    def imagine(self) -> tuple[str, str] | None:
        """Returns the thought and action of seeing the wanted thing where it is not; None when that makes no sense."""
        here, looks = self._here, self.goal.kind == "look"
        want = self.goal.dest if self._holding else self.goal.obj
        if (
            here is None
            or (self._holding and not looks)
            or any(where == here and self._wanted(thing, where, want) for thing, where in self._seen.items())
        ):
            return None
        if self._holding:
            return f"have {self._holding} . see {want} 1 .", f"use {want} 1"
        return f"need {want} . see {want} 1 .", f"take {want} 1 from {here}"

    def override(self, action: str) -> None:
        """Records that `action` was played instead of the one just returned (noise to recover from)."""
        self._last_action = action
        self._next = self._resume_at

    def _read(self, text: str) -> None:
        action = self._last_action
        if not action or "nothing happens" in text:
            return
        words = action.split()
        if action.startswith("go to "):
            self._here = action[len("go to ") :]
            self.visited.append(self._here)
        elif words[0] == "take":
            self._holding = " ".join(words[1:3])
            self._seen.pop(self._holding, None)
            self.found_in.append(words[4])
        elif words[0] == "move":
            self._placed.append(" ".join(words[1:3]))
            self._holding, self._treated = None, False
        elif words[0] in _DEVICES:
            self._treated = True
        if self._here and words[0] in ("go", "open"):
            self._closed[self._here] = f"the {self._here} is closed" in text
            for thing in list_things(text):
                self._seen[thing] = self._here

    def _decide(self) -> tuple[str, str]:
        goal = self.goal
        if self._holding is None:
            return self._find(goal.obj)
        if goal.kind == "look":
            return self._find(goal.dest)
        device = _DEVICES.get(goal.kind)
        if device and not self._treated:
            where = self._first_of(device)
            if self._here != where:
                return f"have {self._holding} . {goal.kind} it .", f"go to {where}"
            return f"have {self._holding} . at {where} .", f"{goal.kind} {self._holding} with {where}"
        have = " ".join(filter(None, ("have", _DONE_WORDS.get(goal.kind), self._holding, ".")))
        where = self._first_of(goal.dest)
        if self._here != where:
            return f"{have} put in {goal.dest} .", f"go to {where}"
        if self._closed.get(where):
            return f"{have} closed .", f"open {where}"
        return f"{have} at {where} .", f"move {self._holding} to {where}"

    def _find(self, want: str) -> tuple[str, str]:
        need = f"need {want} ."
        if self._here and self._closed.get(self._here):
            return f"{need} closed .", f"open {self._here}"
        candidates = [(thing, where) for thing, where in self._seen.items() if self._wanted(thing, where, want)]
        for thing, where in candidates:
            if where == self._here:
                if self._holding:
                    return f"have {self._holding} . see {thing} .", f"use {thing}"
                return f"{need} see {thing} .", f"take {thing} from {where}"
        if candidates:
            thing, where = candidates[0]
            return f"{need} {thing} at {where} .", f"go to {where}"
        return self._search(need)

    def _wanted(self, thing: str, where: str, want: str) -> bool:
        placed_there = where.split()[0] == self.goal.dest and not self._holding
        return thing.split()[0] == want and thing not in self._placed and not placed_there

    def _search(self, need: str) -> tuple[str, str]:
        count = len(self._order)
        previous = self._order[(self._next - 1) % count] if self._next else None
        target = self._order[self._next % count]
        self._next += 1
        if target == self._here and count > 1:
            previous, target = target, self._order[self._next % count]
            self._next += 1
        if previous:
            return f"{need} {previous} then {target} .", f"go to {target}"
        start = "skill : start at" if self.hint else "start at"
        return f"{need} {start} {target} .", f"go to {target}"

    def _first_of(self, kind: str) -> str:
        for name in self.receptacles:
            if name.split()[0] == kind:
                return name
        raise DataError(f"the room has no {kind}, which the goal {self.goal} needs")


def hint_skill(thing: str, kind: str) -> tuple[str, str]:
    """Returns (title, principle) of the skill that says to start a search for `thing` at a type of receptacle."""
    return f"{thing} at {kind}", f"need {thing} start at {kind}"


class HouseholdDemonstrator:
    """The expert in an episode of a cold start, with search hints drawn from the room in half of the episodes."""

    def __init__(self, observation: str, family: str, rng: random.Random, *, guess: float = 0.0):
        """Draws the hints.

        Args:
          observation: the first one.
          family: of the task.
          rng: decides every draw.
          guess: share of reviews that name a place of the room at random, and not where the thing was found: they show
            the form of an edit, and leave its judgement to be learned.

        Raises:
          DataError: the observation is no room with a task.
        """
        types = sorted({thing.split()[0] for thing in list_things(observation.partition("Your task")[0])})
        hints = rng.sample(types, min(rng.choice((0, 0, 1, 2)), len(types)))
        thing = goal_of(observation).obj
        self.skills = [hint_skill(thing, kind) for kind in hints]
        self._expert = HouseholdExpert(observation, " ".join(principle for _, principle in self.skills), rng)
        self._family, self._rng, self._guess = family, rng, guess

    def act(self, observation: str) -> tuple[str, str]:
        """Returns the thought and the next action."""
        return self._expert.act(observation)

    def review(self) -> tuple[str, dict]:
        """Returns the thought and the tool call of the review turn."""
        if self._guess and self._rng.random() < self._guess:
            self._expert.found_in = [self._rng.choice(self._expert.receptacles).split()[0]]
        return expert_review(self._expert, self._family, self._rng)


def expert_review(expert: HouseholdExpert, family: str, rng: random.Random) -> tuple[str, dict]:
    """Returns the thought and the tool call of the review turn, made from what the episode showed.

    A hint that led to the target is kept; one that did not is replaced, or another is proposed beside it.
    """
    keep = {"name": "keep_skill", "arguments": {"reason": "nothing new"}}
    if not expert.found_in:
        return f"no {expert.goal.obj} found .", keep
    found = expert.found_in[0]
    thought = f"{expert.goal.obj} found at {found} ."
    if found == expert.hint:
        return f"{thought} skill worked .", keep
    if found in expert.hints:
        return f"{thought} skill known .", keep
    if expert.hint is None and rng.random() < 0.2:
        return thought, keep
    thing = expert.goal.obj
    title, principle = hint_skill(thing, found)
    arguments = {"title": title, "principle": principle, "when_to_apply": f"to search {thing}"}
    if expert.hint and rng.random() < 0.5:
        arguments = {"skill_id": hint_skill(thing, expert.hint)[0], **arguments, "reason": f"found at {found}"}
        return f"{thought} not at {expert.hint} .", {"name": "update_skill", "arguments": arguments}
    arguments = {"category": family, **arguments, "evidence": f"found at {found}"}
    return thought, {"name": "propose_skill", "arguments": arguments}
