"""Writes the PDDL problem of a new game in ALFRED's form: what stands where, what belongs where, and the goal."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Protocol

import alfworld.gen.constants as constants
import alfworld.gen.goal_library as goal_library

from sage_jax.envs.alfworld import rooms

_EXTRA_COPY = 0.3  # how often a task about one object has a second one of its class in the room
_JITTER_M = 0.3  # objects lie this close to the middle of their receptacle; only their ids show it
_NAMES = {"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}
_NUMBER = re.compile(r"[+-]?\d+\.\d+")
_ABILITIES = ("Cleanable", "Heatable", "Coolable", "Toggleable", "Sliceable")


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a game asks for, in ALFRED's class names; "" where the family has no such part.

    Attributes:
      family: task family.
      thing: class of the object to find.
      target: class of the receptacle to put it in.
      lamp: class of the lamp to look at it under.
      station: class of the receptacle that cleans, heats or cools it.
    """

    family: str
    thing: str
    target: str = ""
    lamp: str = ""
    station: str = ""

    def words(self) -> dict[str, str]:
        """Returns the fields of a task sentence."""
        return {"obj": self.thing.lower(), "recep": self.target.lower(), "toggle": self.lamp.lower(), "mrecep": ""}

    def params(self) -> dict[str, str | bool]:
        """Returns traj_data's pddl_params."""
        return {
            "object_target": self.thing,
            "parent_target": self.target,
            "toggle_target": self.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        }


class LayoutOptions(Protocol):
    """The options of the generator that this file reads."""

    @property
    def max_receptacles(self) -> int | None:
        """Receptacles of a room at most; None: all."""

    @property
    def min_objects(self) -> int:
        """Fewest objects that have nothing to do with the task."""

    @property
    def max_objects(self) -> int:
        """Most of them."""

    @property
    def habit(self) -> float:
        """Share of the objects that lie in the first class of `usual_places` that may hold them."""

    def usual_places(self, thing: str) -> tuple[str, ...]:
        """Returns the receptacle classes in the order in which the people of this world put an object of a class."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A furnished room.

    Attributes:
      receptacles: receptacle id -> location text.
      objects: object id -> receptacle id, in the order of placing.
      agent: location text of the player's start.
    """

    receptacles: dict[str, str]
    objects: dict[str, str]
    agent: str


def draw_layout(rng: random.Random, room: rooms.Room, goal: Goal, options: LayoutOptions) -> Layout | None:
    """Furnishes a room for a goal; None when there is nowhere to put what the goal needs."""
    receptacles = _choose_receptacles(rng, room, goal, options.max_receptacles)
    objects: dict[str, str] = {}
    copies = rng.choice((2, 3)) if goal.family == "pick_two_obj_and_place" else 1 + (rng.random() < _EXTRA_COPY)
    starts = [
        r for r in receptacles if goal.thing in rooms.may_hold(c := rooms.receptacle_class(r)) and c != goal.target
    ]
    if not starts:
        return None
    for _ in range(copies):
        _place(rng, objects, goal.thing, _usual(rng, goal.thing, starts, options))
    if goal.lamp:
        hosts = [r for r in receptacles if rooms.receptacle_class(r) in rooms.LAMP_HOSTS[goal.lamp]]
        if not hosts:
            return None
        _place(rng, objects, goal.lamp, hosts)
    others = [thing for thing in room.objects if thing != goal.thing]
    for _ in range(rng.randint(options.min_objects, options.max_objects) if others else 0):
        thing = rng.choice(others)
        hosts = [r for r in receptacles if thing in rooms.may_hold(rooms.receptacle_class(r))]
        if hosts:
            _place(rng, objects, thing, _usual(rng, thing, hosts, options))
    agent = "loc|0|0|0|30"
    while agent in receptacles.values():
        agent = f"loc|{rng.randint(-40, 40)}|{rng.randint(-40, 40)}|0|30"
    return Layout(receptacles, objects, agent)


def _choose_receptacles(rng: random.Random, room: rooms.Room, goal: Goal, limit: int | None) -> dict[str, str]:
    """Returns the room's receptacles, or `limit` of them among which the goal is possible."""
    names = list(room.receptacles)
    if limit is None or len(names) <= limit:
        return dict(room.receptacles)
    rng.shuffle(names)
    needed = [
        lambda c: c == goal.target,
        lambda c: c == goal.station,
        lambda c: c in rooms.LAMP_HOSTS.get(goal.lamp, ()),
        lambda c: c != goal.target and goal.thing in rooms.may_hold(c),
    ]
    chosen: dict[str, None] = {}
    for fits in needed:
        for name in [name for name in names if fits(rooms.receptacle_class(name))][:1]:
            chosen[name] = None
    for name in names:
        if len(chosen) < limit:
            chosen.setdefault(name)
    return {name: room.receptacles[name] for name in sorted(chosen)}


def _usual(rng: random.Random, thing: str, hosts: list[str], options: LayoutOptions) -> list[str]:
    """Returns those of `hosts` where people put a thing of this class first, or all where they had no habit."""
    if not options.habit or rng.random() >= options.habit:
        return hosts
    order = options.usual_places(thing)
    best = min((rooms.receptacle_class(host) for host in hosts), key=order.index)
    return [host for host in hosts if rooms.receptacle_class(host) == best]


def _place(rng: random.Random, objects: dict[str, str], thing: str, hosts: list[str]) -> None:
    """Puts a new object of a class in one of `hosts`, under an id that is its own."""
    host = rng.choice(hosts)
    middle = [float(number) for number in _NUMBER.findall(host)[:3]]
    while True:
        where = "|".join("%+06.2f" % (value + rng.uniform(-_JITTER_M, _JITTER_M)) for value in middle)
        name = f"{thing}|{where}"
        if name not in objects:
            objects[name] = host
            return


def write_problem(trial: str, layout: Layout, goal: Goal) -> str:
    """Returns the PDDL problem of a furnished room and a goal."""
    declared = [f"        {line}" for line in _declarations(layout)]
    initial = [f"        ({line})" for line in _facts(layout)]
    pddl_goal = goal_library.gdict[goal.family]["pddl"].format(
        obj=goal.thing, recep=goal.target, toggle=goal.lamp, mrecep=""
    )
    head = [f"(define (problem plan_{trial})", "(:domain alfred)", "(:objects", "agent1 # agent"]
    return _pddl("\n".join([*head, *declared, "        )", "(:init", *initial, "        )", pddl_goal]))


def _pddl(text: str) -> str:
    """Spells ids as PDDL allows; the templates write the type separator as "#" so that ids may hold "-"."""
    return "".join("-" if char == "#" else _NAMES.get(char, char) for char in text)


def _declarations(layout: Layout) -> list[str]:
    """Returns the objects of the problem. Classes are declared as objects too, as in ALFRED's own problems."""
    locations = sorted({*layout.receptacles.values(), layout.agent})
    return [
        *(f"{thing} # object" for thing in rooms.OBJECT_CLASSES),
        *(f"{thing}Type # otype" for thing in rooms.OBJECT_CLASSES),
        *(f"{receptacle}Type # rtype" for receptacle in rooms.RECEPTACLE_CLASSES),
        *(f"{name} # object" for name in sorted(layout.objects)),
        *(f"{name} # receptacle" for name in sorted(layout.receptacles)),
        *(f"{location} # location" for location in locations),
    ]


def _facts(layout: Layout) -> list[str]:
    """Returns the facts at the start."""
    objects = {name: name.partition("|")[0] for name in sorted(layout.objects)}
    receptacles = {name: rooms.receptacle_class(name) for name in sorted(layout.receptacles)}
    present = sorted(set(objects.values()))
    facts = [f"receptacleType {name} {kind}Type" for name, kind in receptacles.items()]
    facts += [f"objectType {name} {kind}Type" for name, kind in objects.items()]
    facts += [
        f"canContain {kind}Type {thing}Type"
        for kind in sorted(set(receptacles.values()))
        for thing in present
        if thing in rooms.may_hold(kind)
    ]
    facts += [f"pickupable {name}" for name, kind in objects.items() if kind not in rooms.LAMPS]
    facts += [f"isReceptacleObject {n}" for n, kind in objects.items() if kind in constants.MOVABLE_RECEPTACLES_SET]
    facts += [f"openable {name}" for name, kind in receptacles.items() if kind in constants.OPENABLE_CLASS_SET]
    facts += [f"atLocation agent1 {layout.agent}"]
    for ability in _ABILITIES:
        facts += [f"{ability.lower()} {name}" for name, kind in objects.items() if rooms.affords(ability, kind)]
    for name, host in layout.objects.items():
        facts += [f"inReceptacle {name} {host}", f"objectAtLocation {name} {layout.receptacles[host]}"]
    return facts + [f"receptacleAtLocation {name} {place}" for name, place in layout.receptacles.items()]
