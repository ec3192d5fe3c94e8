"""An endless text household in ALFWorld's surface form, for pre-training the small base model.

Rooms, contents and goals are drawn at random and not from AI2-THOR layouts, and objects lie anywhere: the traces teach
the grammar of actions, goal following and copying, but nothing about where things are in the benchmark's rooms.
"""

from __future__ import annotations

import random

RECEPTACLES = (
    "armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser "
    "fridge garbagecan handtowelholder laundryhamper microwave ottoman paintinghanger safe shelf sidetable sinkbasin "
    "sofa stoveburner tvstand toaster toilet toiletpaperhanger towelholder"
).split()
OPENABLE = frozenset("cabinet drawer fridge microwave safe".split())
OBJECTS = (
    "alarmclock apple baseballbat basketball book boots bowl box bread butterknife cd candle cellphone cloth "
    "creditcard cup dishsponge egg footstool fork glassbottle handtowel houseplant kettle keychain knife ladle laptop "
    "lettuce mug newspaper pan papertowel papertowelroll pen pencil peppershaker pillow plate plunger pot potato "
    "remotecontrol saltshaker scrubbrush soapbar soapbottle spatula spoon spraybottle statue teddybear television "
    "tennisracket tissuebox toiletpaper toiletpaperroll tomato towel vase watch wateringcan winebottle"
).split()
LAMPS = ("desklamp", "floorlamp")
FAMILIES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_SHARED_SPOT = 0.15  # chance that a receptacle stands where its neighbour of the same kind does
_DEVICE = {FAMILIES[2]: "sinkbasin", FAMILIES[3]: "microwave", FAMILIES[4]: "fridge"}
_TEMPLATES = {
    FAMILIES[0]: ("put a {obj} in {dest}", "put some {obj} on {dest}"),
    FAMILIES[1]: ("look at {obj} under the {dest}", "examine the {obj} with the {dest}"),
    FAMILIES[2]: ("put a clean {obj} in {dest}", "clean some {obj} and put it in {dest}"),
    FAMILIES[3]: ("put a hot {obj} in {dest}", "heat some {obj} and put it in {dest}"),
    FAMILIES[4]: ("put a cool {obj} in {dest}", "cool some {obj} and put it in {dest}"),
    FAMILIES[5]: ("put two {obj} in {dest}", "find two {obj} and put them in {dest}"),
}


def enumerate_things(things: list[str]) -> str:
    """Joins names as the engine's grammar does: "a x 1, a y 2, and a z 1" or "nothing"."""
    named = [f"a {thing}" for thing in things]
    if not named:
        return "nothing"
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + ", and " + named[-1]


def _engine_order(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (name.split()[0], -int(name.split()[1])))


class Household:
    """One random room with one random goal; `first_observation`, then `step(action)` -> observation."""

    def __init__(self, rng: random.Random, *, family: str | None = None, max_receptacles: int = 12):
        self.family = family or rng.choice(FAMILIES)
        self.won = False
        self._make_room(rng, max_receptacles)
        self._make_goal(rng)
        self._share_spots(rng)
        self._fill(rng)
        self._here: str | None = None
        self._open: set[str] = set()
        self._holding: str | None = None
        self._treated: set[str] = set()
        task = rng.choice(_TEMPLATES[self.family]).format(obj=self.obj, dest=self.dest)
        self.first_observation = (
            "You are in the middle of a room. Looking quickly around you, you see "
            f"{enumerate_things(self.receptacles)}. Your task is to: {task}."
        )

    def _make_room(self, rng: random.Random, limit: int) -> None:
        device = _DEVICE.get(self.family)
        types = rng.sample(RECEPTACLES, rng.randint(3, 7))
        names: list[str] = [f"{device} 1"] if device else []
        for kind in types:
            if kind != device:
                names += [f"{kind} {i + 1}" for i in range(rng.choice((1, 1, 1, 2, 3, 4, 6)))]
        self.receptacles = _engine_order(names[:limit])

    def _make_goal(self, rng: random.Random) -> None:
        types = sorted({name.split()[0] for name in self.receptacles})
        self.dest = rng.choice(LAMPS) if self.family == FAMILIES[1] else rng.choice(types)
        self.obj = rng.choice(OBJECTS)

    def _share_spots(self, rng: random.Random) -> None:
        """Puts some neighbours of one kind at one spot, from which the engine lets nobody go to the other."""
        self._spot = {name: name for name in self.receptacles}
        for one, other in zip(self.receptacles, self.receptacles[1:], strict=False):
            kind = one.split()[0]
            if kind == other.split()[0] != self.dest and rng.random() < _SHARED_SPOT:
                self._spot[other] = self._spot[one]

    def _fill(self, rng: random.Random) -> None:
        self._where: dict[str, list[str]] = {name: [] for name in self.receptacles}
        reached = [name for name in self.receptacles if self._spot[name] == name]
        away = [name for name in reached if name.split()[0] != self.dest] or reached
        wanted = 2 if self.family == FAMILIES[5] else rng.choice((1, 1, 2))
        count: dict[str, int] = {}
        things = [(self.obj, rng.choice(away)) for _ in range(wanted)]
        if self.family == FAMILIES[1]:
            things.append((self.dest, rng.choice(reached)))
        pool = [name for name in OBJECTS if name != self.obj]
        favourites = rng.sample(pool, 8)
        for _ in range(rng.randint(2, 16)):
            things.append((rng.choice(favourites), rng.choice(self.receptacles)))
        rng.shuffle(things)
        for name, where in things:
            count[name] = count.get(name, 0) + 1
            self._where[where].append(f"{name} {count[name]}")

    def _look(self, where: str) -> str:
        listed = enumerate_things(_engine_order(self._where[where]))
        if where.split()[0] not in OPENABLE:
            return f"On the {where}, you see {listed}."
        return f"The {where} is open. In it, you see {listed}." if where in self._open else f"The {where} is closed."

    def step(self, action: str) -> str:
        """Plays one action; anything that cannot be done answers "Nothing happens."."""
        words = action.split()
        verb = words[0] if words else ""
        where = " ".join(words[2:])
        if verb == "go" and where in self._where and self._spot[where] != self._spot.get(self._here or ""):
            self._here = where
            return f"You arrive at {self._here}. {self._look(self._here)}"
        rest = " ".join(words[1:])
        if verb == "open" and rest == self._here and rest.split()[0] in OPENABLE and rest not in self._open:
            self._open.add(rest)
            return f"You open the {rest}. {self._look(rest)}"
        if verb == "use" and self._here and rest in self._where[self._here] and rest.split()[0] in LAMPS:
            self.won = self.family == FAMILIES[1] and (self._holding or "").split(" ")[0] == self.obj
            return f"You turn on the {rest}."
        if len(words) == 6 and words[3] in ("from", "to", "with") and " ".join(words[4:]) == self._here:
            return self._handle(verb, " ".join(words[1:3]), self._here)
        return "Nothing happens."

    def _handle(self, verb: str, thing: str, where: str) -> str:
        inside = self._where[where]
        reachable = where.split()[0] not in OPENABLE or where in self._open
        if verb == "take" and reachable and thing in inside and not self._holding:
            inside.remove(thing)
            self._holding = thing
            return f"You pick up the {thing} from the {where}."
        if thing != self._holding:
            return "Nothing happens."
        if verb == "move" and reachable:
            inside.append(thing)
            self._holding = None
            self._check_placed(where)
            return f"You move the {thing} to the {where}."
        devices = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
        if devices.get(verb) == where.split()[0]:
            self._treated.add(f"{verb} {thing}")
            return f"You {verb} the {thing} using the {where}."
        return "Nothing happens."

    def _check_placed(self, where: str) -> None:
        if self.family == FAMILIES[1]:
            return
        verb = {FAMILIES[2]: "clean ", FAMILIES[3]: "heat ", FAMILIES[4]: "cool "}.get(self.family, "")
        placed = [
            thing
            for name, things in self._where.items()
            if name.split()[0] == self.dest
            for thing in things
            if thing.split()[0] == self.obj and (not verb or verb + thing in self._treated)
        ]
        self.won = len(placed) >= (2 if self.family == FAMILIES[5] else 1)
