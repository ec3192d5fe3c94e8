"""Makes new ALFWorld games: a room, a task that it allows, objects where they belong, and proof that it can be solved.

A game is a pure function of the options, the split, the family and its index: all its random choices come from a seed
of its own, and a game that the scripted expert cannot finish within its limit is made again under the next attempt's
seed. So any number of processes, on any machine, make the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import random

import alfworld.gen.goal_library as goal_library
import alfworld.info

from sage_jax.envs.alfworld import problem, rooms
from sage_jax.envs.alfworld.episode import Episode
from sage_jax.envs.alfworld.expert import Expert
from sage_jax.envs.alfworld.game import GAME_FILE, TRAJECTORY_FILE, Game, GameFiles
from sage_jax.envs.alfworld.planner import PlannerLibrary
from sage_jax.envs.alfworld.translation import Translation, translate, translation_key
from sage_jax.errors import ConfigError, DataError
from sage_jax.seeding import derive_seed

VERSION = 3  # raise when the same options would give other games: caches of older versions are then left alone
SPLITS = ("train", "valid_seen", "valid_unseen")
_ATTEMPTS = 200
_NEEDS = {
    "pick_clean_then_place_in_recep": "Cleanable",
    "pick_heat_then_place_in_recep": "Heatable",
    "pick_cool_then_place_in_recep": "Coolable",
}


@dataclasses.dataclass(frozen=True)
class GameOptions:
    """What the generated games depend on.

    Attributes:
      seed: of everything random.
      train: games of each family for training.
      valid_seen: games of each family in rooms that training uses.
      valid_unseen: games of each family in rooms that training never uses.
      unseen_rooms: rooms of each kind (30 kitchens, living rooms, bedrooms, bathrooms) kept for valid_unseen.
      max_receptacles: receptacles of a room at most, those the task needs among them; None keeps the full rooms.
      min_objects: fewest objects that have nothing to do with the task.
      max_objects: most of them.
      expert_steps: the scripted expert must solve a game within so many steps.
      habit: share of the objects that lie where the people of this world usually put things (`usual_places`); the
        others lie anywhere. 0 leaves nothing to know about a room that was never seen.
    """

    seed: int = 0
    train: int = 60
    valid_seen: int = 10
    valid_unseen: int = 10
    unseen_rooms: int = 5
    max_receptacles: int | None = 12
    min_objects: int = 6
    max_objects: int = 16
    expert_steps: int = 30
    habit: float = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigError for values that no game can be made of."""
        for name in SPLITS:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}: the number of games of a family is 0 or more")
        if not 1 <= self.unseen_rooms <= 20:
            raise ConfigError(f"unseen_rooms={self.unseen_rooms}: of 30 rooms of a kind, 1 to 20 may be kept unseen")
        if self.max_receptacles is not None and self.max_receptacles < 4:
            raise ConfigError(f"max_receptacles={self.max_receptacles}: a task needs up to 4; give 4 or more, or None")
        if not 0 <= self.min_objects <= self.max_objects:
            raise ConfigError(f"min_objects={self.min_objects} must lie between 0 and max_objects={self.max_objects}")
        if self.expert_steps < 5:
            raise ConfigError(f"expert_steps={self.expert_steps}: the shortest tasks need 5 steps; give more")
        if not 0 <= self.habit <= 1:
            raise ConfigError(f"habit={self.habit}: a share lies between 0 and 1")

    def usual_places(self, thing: str) -> tuple[str, ...]:
        """Returns the receptacle classes in the order in which the people of this world put an object of a class."""
        places = list(rooms.RECEPTACLE_CLASSES)
        random.Random(derive_seed(self.seed, "alfworld/usual_places", thing)).shuffle(places)
        return tuple(places)

    def scenes(self, split: str) -> tuple[int, ...]:
        """Returns the scene numbers that a split draws from: those kept unseen, or the others."""
        kept: set[int] = set()
        for kind, numbers in rooms.KINDS.items():
            rng = random.Random(derive_seed(self.seed, "alfworld/unseen_rooms", kind))
            kept.update(rng.sample(list(numbers), self.unseen_rooms))
        everything = {number for numbers in rooms.KINDS.values() for number in numbers}
        return tuple(sorted(kept if split == "valid_unseen" else everything - kept))


@dataclasses.dataclass(frozen=True)
class MadeGame:
    """A finished game.

    Attributes:
      folder: its folder inside the split, in the official naming.
      files: file name -> content.
      family: task family.
      expert_steps: steps the scripted expert took.
      translation: the grounded game, to be stored so that nobody grounds it again.
    """

    folder: str
    files: dict[str, bytes]
    family: str
    expert_steps: int
    translation: Translation

    def key(self) -> str:
        """Returns the name under which the translation is stored."""
        game = json.loads(self.files[GAME_FILE])
        return translation_key(game["pddl_domain"], game["pddl_problem"])


class GameMaker:
    """Makes games, and plays each with the expert before it hands it out."""

    def __init__(self, options: GameOptions) -> None:
        """Loads a planner to play on."""
        self._options = options
        self._planner = PlannerLibrary()
        with open(alfworld.info.ALFRED_PDDL_PATH) as domain, open(alfworld.info.ALFRED_TWL2_PATH) as grammar:
            self._domain, self._grammar = domain.read(), grammar.read()

    def make(self, split: str, family: str, index: int) -> MadeGame:
        """Returns the game number `index` of a family and split.

        Raises:
          DataError: no attempt gave a game that the expert can solve; the message says which options to relax.
        """
        for attempt in range(_ATTEMPTS):
            seed = derive_seed(self._options.seed, "alfworld/game", VERSION, split, family, index, attempt)
            made = self._attempt(random.Random(seed), split, family, f"trial_G{seed:016x}")
            if made is not None:
                return made
        raise DataError(
            f"no solvable {family} game for {split} in {_ATTEMPTS} attempts with {self._options}: "
            "raise expert_steps or unseen_rooms"
        )

    def close(self) -> None:
        """Hands the planner back."""
        self._planner.close()

    def _attempt(self, rng: random.Random, split: str, family: str, trial: str) -> MadeGame | None:
        """Makes one game; None when the room does not allow the task or the expert does not finish it."""
        room = rooms.load_room(rng.choice(self._options.scenes(split)))
        goal = draw_goal(rng, family, room)
        if goal is None:
            return None
        layout = problem.draw_layout(rng, room, goal, self._options)
        if layout is None:
            return None
        sentence = rng.choice(goal_library.gdict[family]["templates"]).format(**goal.words())
        text = problem.write_problem(trial, layout, goal)
        grammar = self._grammar.replace("UNKNOWN GOAL", sentence)
        params = goal.params()
        files = GameFiles(self._domain, text, grammar, {**params, "task_type": family})
        try:
            translation = translate(files.domain, files.problem)
        except DataError:
            return None  # a goal that is impossible from the start
        steps = self._solve(Game(files, translation), trial)
        if steps is None:
            return None
        game = {"pddl_domain": self._domain, "grammar": grammar, "pddl_problem": text}
        trajectory = {
            "task_id": trial,
            "task_type": family,
            "pddl_params": params,
            "scene": {"floor_plan": f"FloorPlan{room.scene}", "scene_num": room.scene},
            "turk_annotations": {"anns": [{"task_desc": f"{sentence[0].upper()}{sentence[1:]}.", "high_descs": []}]},
        }
        last = goal.target or goal.lamp
        return MadeGame(
            folder=f"{family}-{goal.thing}-None-{last}-{room.scene}/{trial}",
            files={
                GAME_FILE: _json({**game, "solvable": True, "walkthrough": None}),
                TRAJECTORY_FILE: _json(trajectory),
                "initial_state.pddl": text.encode(),
            },
            family=family,
            expert_steps=steps,
            translation=translation,
        )

    def _solve(self, game: Game, trial: str) -> int | None:
        """Returns the number of steps in which the expert solves a game, None when it does not in time."""
        episode = Episode(game, self._planner)
        expert = Expert(episode, derive_seed(0, "alfworld/solvable", trial))
        action = expert.suggest()
        for step in range(1, self._options.expert_steps + 1):
            if action is None:
                return None
            episode.play(action)
            if episode.won:
                return step
            action = expert.suggest(action)
        return None


def draw_goal(rng: random.Random, family: str, room: rooms.Room) -> problem.Goal | None:
    """Draws an object and a destination that a room allows for a family; None when it allows none."""
    here = sorted({rooms.receptacle_class(name) for name in room.receptacles})
    if family == "look_at_obj_in_light":
        lamps = [lamp for lamp in room.lamps if set(rooms.LAMP_HOSTS[lamp]) & set(here)]
        return problem.Goal(family, rng.choice(room.objects), lamp=rng.choice(lamps)) if lamps else None
    need = _NEEDS.get(family)
    if need is not None and rooms.STATIONS[need] not in here:
        return None
    pairs = [
        (thing, target)
        for thing in room.objects
        if need is None or rooms.affords(need, thing)
        for target in here
        if thing in rooms.may_hold(target) and any(thing in rooms.may_hold(c) for c in here if c != target)
    ]
    if not pairs:
        return None
    thing, target = rng.choice(pairs)
    return problem.Goal(family, thing, target=target, station=rooms.STATIONS[need] if need else "")


def _json(value: dict) -> bytes:
    return json.dumps(value, indent=1).encode()
