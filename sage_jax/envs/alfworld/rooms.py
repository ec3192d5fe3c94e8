"""The 120 rooms that the alfworld package describes, and what may stand and happen in them.

A room is an AI2-THOR scene: its receptacles with their places, and the classes of objects it can hold. Which object may
lie in which receptacle, and what can be cleaned, heated, cooled or sliced, are ALFRED's own tables.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

import alfworld.gen
import alfworld.gen.constants as constants

KINDS = {
    "kitchen": range(1, 31),
    "living_room": range(201, 231),
    "bedroom": range(301, 331),
    "bathroom": range(401, 431),
}
RECEPTACLE_CLASSES = tuple(sorted(constants.RECEPTACLES - set(constants.MOVABLE_RECEPTACLES)))
OBJECT_CLASSES = tuple(sorted(constants.OBJECTS_SET - set(RECEPTACLE_CLASSES)))
LAMPS = ("DeskLamp", "FloorLamp")
# ALFRED's tables place no lamps; these are the surfaces on which its scenes have them.
LAMP_HOSTS = {
    "DeskLamp": ("CoffeeTable", "Desk", "DiningTable", "Dresser", "Shelf", "SideTable"),
    "FloorLamp": ("ArmChair", "CoffeeTable", "Desk", "Dresser", "SideTable", "Sofa"),
}
STATIONS = {"Cleanable": "SinkBasin", "Heatable": "Microwave", "Coolable": "Fridge"}
_GRID = 4  # layout positions are in metres, PDDL locations in quarter metres


@dataclasses.dataclass(frozen=True)
class Room:
    """One scene.

    Attributes:
      scene: AI2-THOR scene number.
      receptacles: receptacle id -> PDDL location text.
      objects: classes of small objects found here that have a place to lie, sorted.
      lamps: lamp classes found here.
    """

    scene: int
    receptacles: dict[str, str]
    objects: tuple[str, ...]
    lamps: tuple[str, ...]


def receptacle_class(receptacle: str) -> str:
    """Returns the class of a receptacle id; basins are named by their last part ("Sink|...|SinkBasin")."""
    first, _, rest = receptacle.partition("|")
    last = rest.rpartition("|")[2]
    return last if last in ("SinkBasin", "BathtubBasin") else first


def may_hold(receptacle: str) -> frozenset[str]:
    """Returns the object classes that may lie in a receptacle of this class."""
    return frozenset(constants.VAL_RECEPTACLE_OBJECTS.get(receptacle, ()))


def affords(action: str, thing: str) -> bool:
    """Whether an object class is "Cleanable", "Heatable", "Coolable", "Toggleable" or "Sliceable"."""
    return thing in constants.VAL_ACTION_OBJECTS[action]


@functools.cache
def load_room(scene: int) -> Room:
    """Reads a room from the installed alfworld package."""
    folder = pathlib.Path(alfworld.gen.__file__).parent / "layouts"
    places = json.loads((folder / f"FloorPlan{scene}-openable.json").read_text())
    present = set(json.loads((folder / f"FloorPlan{scene}-objects.json").read_text()))
    receptacles = {
        name: f"loc|{round(x * _GRID)}|{round(z * _GRID)}|{int(turn) // 90}|{int(tilt)}"
        for name, (x, z, turn, tilt) in sorted(places.items())
        if receptacle_class(name) in RECEPTACLE_CLASSES
    }
    holdable = frozenset().union(*(may_hold(receptacle_class(name)) for name in receptacles))
    return Room(
        scene=scene,
        receptacles=receptacles,
        objects=tuple(sorted(present & holdable & set(OBJECT_CLASSES))),
        lamps=tuple(lamp for lamp in LAMPS if lamp in present),
    )
