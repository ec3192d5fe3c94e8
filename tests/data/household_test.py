"""The text household speaks like the real engine, refuses what cannot be done, and pays each family's own condition."""

import random
import re

import pytest

from sage_jax.agents.expert import HouseholdExpert, list_things
from sage_jax.data.household import FAMILIES, LAMPS, OBJECTS, OPENABLE, RECEPTACLES, Household, enumerate_things
from sage_jax.envs.alfworld import AlfworldFactory

PICK, LIGHT, CLEAN, HEAT, COOL, TWO = FAMILIES
NAME = r"[a-z]+ \d+"
LISTED = rf"(?:nothing|a {NAME}|a {NAME}(?:, a {NAME})*, and a {NAME})"
SEEN = (
    rf"(?P<on>On the (?P<where>{NAME}), you see {LISTED}\.)"
    rf"|(?P<closed>The {NAME} is closed\.)|(?P<open>The {NAME} is open\. In it, you see {LISTED}\.)"
)
FIRST = (
    rf"You are in the middle of a room\. Looking quickly around you, you see {LISTED}\.\s+Your task is to: [a-z ]+\."
)
FORMS = {
    "go": rf"You arrive at {NAME}\. (?:{SEEN})",
    "open": rf"You open the {NAME}\. The {NAME} is open\. In it, you see {LISTED}\.",
    "take": rf"You pick up the {NAME} from the {NAME}\.",
    "move": rf"You move the {NAME} to the {NAME}\.",
    "clean": rf"You clean the {NAME} using the {NAME}\.",
    "heat": rf"You heat the {NAME} using the {NAME}\.",
    "cool": rf"You cool the {NAME} using the {NAME}\.",
    "use": rf"You turn on the {NAME}\.",
}


class RealHousehold:
    """A real game with the interface of the text household."""

    def __init__(self, env, task):
        self._env = env
        self.first_observation, self.won = env.reset(task, 0).text, False

    def step(self, action):
        result = self._env.step(action)
        self.won = result.won
        return result.text


@pytest.fixture(scope="module")
def rooms(household_games):
    """Makes rooms of every family: `rooms("text")` or `rooms("real")`, one after the other."""
    env = AlfworldFactory()()

    def make(kind):
        if kind == "real":
            yield from (RealHousehold(env, task) for task in household_games)
        else:
            yield from (Household(random.Random(i), family=FAMILIES[i % 6], max_receptacles=8) for i in range(60))

    yield make
    env.close()


@pytest.mark.parametrize("kind", ["text", "real"])
def test_both_engines_speak_the_same_forms(rooms, kind):
    seen = set()
    for room in rooms(kind):
        assert re.fullmatch(FIRST, room.first_observation)
        rng = random.Random(1)
        expert, observation = HouseholdExpert(room.first_observation, "", rng), room.first_observation
        while not room.won:
            _, action = expert.act(observation)
            observation = room.step(action)
            verb, words = action.split()[0], action.split()
            match = re.fullmatch(FORMS[verb], observation)
            if match is None:
                assert (verb, observation) == ("go", "Nothing happens.")  # two places of a real room that are one
                continue
            seen |= {verb, *(name for name in ("on", "closed", "open") if match.groupdict().get(name))}
            names = re.findall(NAME, observation)  # what the action names comes first, in the action's order
            assert names[: len(words) // 3] == re.findall(NAME, action)
            listed = list_things(observation)
            assert listed == sorted(listed, key=lambda name: (name.split()[0], -int(name.split()[1])))
    assert seen == {*FORMS, "on", "closed", "open"}


@pytest.mark.parametrize("kind", ["text", "real"])
def test_both_engines_answer_nothing_to_what_cannot_be_done(rooms, kind):
    for room in rooms(kind):
        places = list_things(room.first_observation.partition("Your task")[0])
        here, there = places[0], places[-1]
        openable = next((place for place in places if place.split()[0] in OPENABLE), None)
        before = ["", "dance", f"go to {here[:-1]}77", f"open {here}", f"take mug 99 from {here}", f"{here} go to"]
        for action in before:
            assert room.step(action) == "Nothing happens.", action
        room.step(f"go to {here}")
        after = [f"go to {here}", f"open {there}" if there != here else "open", f"take mug 99 from {here}"]
        after += [f"move mug 99 to {here}", f"heat mug 99 with {here}", f"clean mug 99 with {here}", "use desklamp 99"]
        for action in after:
            assert room.step(action) == "Nothing happens.", action
        if openable:
            room.step(f"go to {openable}")
            assert room.step(f"open {openable}").startswith("You open")
            assert room.step(f"open {openable}") == "Nothing happens."


def small_room(family, dest="desk"):
    """A room with two mugs, a pan, every device and two desks; the goal is about mugs."""
    room = Household(random.Random(0), family=family)
    room.obj, room.dest = "mug", dest
    room._where = {
        "shelf 1": ["mug 1", "pan 1", "desklamp 1"],
        "drawer 1": ["mug 2"],
        "desk 1": [],
        "desk 2": [],
        "sinkbasin 1": [],
        "microwave 1": [],
        "fridge 1": [],
    }
    room._spot = {name: name for name in room._where}
    return room


def play(room, text):
    """Plays actions separated by commas, of which those marked "!" must do nothing; returns whether the room is won."""
    for action in filter(None, (part.strip() for part in text.split(","))):
        observation = room.step(action.lstrip("!"))
        assert (observation == "Nothing happens.") == action.startswith("!"), action
    return room.won


def test_nobody_goes_between_two_places_at_one_spot():
    room = small_room(FAMILIES[0])
    room._spot["drawer 1"] = "shelf 1"
    assert not play(room, "go to shelf 1, !go to drawer 1, go to desk 1, go to drawer 1, !go to shelf 1")


TAKE = "go to shelf 1, take mug 1 from shelf 1"
PUT = "go to desk 1, move mug 1 to desk 1"
PUT_2 = "go to desk 1, move mug 2 to desk 1"
AWAY = "go to shelf 1, move mug 1 to shelf 1"
TAKE_2 = "go to drawer 1, open drawer 1, take mug 2 from drawer 1"
HOT, COLD = "go to microwave 1, heat mug 1 with microwave 1", "go to fridge 1, cool mug 1 with fridge 1"
WASH = "go to sinkbasin 1, clean mug 1 with sinkbasin 1"


@pytest.mark.parametrize(
    ("family", "actions", "won"),
    [
        (PICK, f"{TAKE}, {PUT}", True),
        (PICK, f"{TAKE}, go to desk 2, move mug 1 to desk 2", True),
        (PICK, f"{TAKE}, go to sinkbasin 1, move mug 1 to sinkbasin 1", False),
        (PICK, "go to shelf 1, take pan 1 from shelf 1, go to desk 1, move pan 1 to desk 1", False),
        (PICK, f"{TAKE}, go to desk 1", False),
        (CLEAN, f"{TAKE}, {WASH}, {PUT}", True),
        (CLEAN, f"{TAKE}, {PUT}", False),
        (CLEAN, f"{TAKE}, {HOT}, {PUT}", False),
        (HEAT, f"{TAKE}, {HOT}, {PUT}", True),
        (HEAT, f"{TAKE}, {PUT}", False),
        (HEAT, f"{TAKE}, {COLD}, {PUT}", False),
        (HEAT, f"{TAKE}, go to fridge 1, !heat mug 1 with fridge 1, {PUT}", False),
        (HEAT, f"{TAKE}, {PUT}, take mug 1 from desk 1, {HOT}, {PUT}", True),
        (HEAT, f"{TAKE}, {HOT}, {AWAY}, {TAKE_2}, {PUT_2}", False),
        (COOL, f"{TAKE}, {COLD}, {PUT}", True),
        (COOL, f"{TAKE}, {PUT}", False),
        (TWO, f"{TAKE}, {PUT}, {TAKE_2}, {PUT_2}", True),
        (TWO, f"{TAKE}, {PUT}, take mug 1 from desk 1, move mug 1 to desk 1", False),
        (TWO, f"{TAKE}, {PUT}, {TAKE_2}", False),
    ],
)  # fmt: skip
def test_win_conditions(family, actions, won):
    assert play(small_room(family), actions) is won


@pytest.mark.parametrize(
    ("actions", "won"),
    [
        ("go to shelf 1, take mug 1 from shelf 1, use desklamp 1", True),
        ("go to shelf 1, use desklamp 1", False),
        ("go to shelf 1, take pan 1 from shelf 1, use desklamp 1", False),
        ("go to shelf 1, take mug 1 from shelf 1, go to desk 1, !use desklamp 1", False),
        (f"{TAKE}, {PUT}", False),
    ],
)
def test_looking_in_light_is_won_by_the_lamp_with_the_object_in_hand(actions, won):
    assert play(small_room(LIGHT, dest="desklamp"), actions) is won


def test_hands_hold_one_thing_and_do_not_reach_into_what_is_closed():
    room = small_room(PICK)
    play(room, "!open shelf 1, go to drawer 1, !take mug 2 from drawer 1, open drawer 1, !open drawer 1")
    play(room, "!take mug 1 from shelf 1, take mug 2 from drawer 1, go to shelf 1, !take mug 1 from shelf 1")
    play(room, "!move mug 1 to shelf 1, !move mug 2 to desk 1, go to fridge 1, !move mug 2 to fridge 1, open fridge 1")
    assert room.step("move mug 2 to fridge 1") == "You move the mug 2 to the fridge 1."
    assert room.step("go to drawer 1") == "You arrive at drawer 1. The drawer 1 is open. In it, you see nothing."


def test_rooms_hold_what_their_goal_needs():
    for seed in range(600):
        limit = 6 + seed % 19
        room = Household(random.Random(seed), max_receptacles=limit)
        things = [thing for inside in room._where.values() for thing in inside]
        assert len(room.receptacles) <= limit
        assert len(set(things)) == len(things)
        assert {thing.split()[0] for thing in things} <= {*OBJECTS, *LAMPS}
        assert {place.split()[0] for place in room.receptacles} <= set(RECEPTACLES)
        wanted = sum(thing.split()[0] == room.obj for thing in things)
        assert wanted >= (2 if room.family == TWO else 1)
        places = things if room.family == LIGHT else room.receptacles
        assert any(place.split()[0] == room.dest for place in places)
        device = {CLEAN: "sinkbasin", HEAT: "microwave", COOL: "fridge"}.get(room.family)
        assert device is None or f"{device} 1" in room.receptacles
        assert list_things(room.first_observation.partition("Your task")[0]) == room.receptacles
        assert not room.won


def test_a_room_is_a_function_of_its_generator():
    for seed in range(20):
        rooms = [Household(random.Random(seed)) for _ in range(2)]
        assert rooms[0].first_observation == rooms[1].first_observation
        assert rooms[0]._where == rooms[1]._where
    assert len({Household(random.Random(seed)).first_observation for seed in range(50)}) == 50


def test_lists_are_joined_as_the_grammar_joins_them():
    assert enumerate_things([]) == "nothing"
    assert enumerate_things(["mug 1"]) == "a mug 1"
    assert enumerate_things(["mug 2", "mug 1"]) == "a mug 2, and a mug 1"
    assert enumerate_things(["apple 1", "mug 2", "mug 1"]) == "a apple 1, a mug 2, and a mug 1"
