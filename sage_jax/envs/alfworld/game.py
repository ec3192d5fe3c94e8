"""A loaded game: everything that does not change while it is played, shared by all episodes of it in a process."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import pathlib
from collections import OrderedDict
from typing import Any

import fast_downward
import textworld.logic
from alfworld.agents.utils.misc import Demangler
from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Proposition, TypeHierarchy, Variable

from sage_jax.envs.alfworld.grammar import Grammar, is_static
from sage_jax.envs.alfworld.state import FactState, group_facts, make_proposition
from sage_jax.envs.alfworld.translation import Translation, load_translation
from sage_jax.errors import DataError

FAMILIES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
GAME_FILE = "game.tw-pddl"
TRAJECTORY_FILE = "traj_data.json"


@dataclasses.dataclass(frozen=True)
class GroundAction:
    """One operator of the planner, e.g. "gotolocation agent1 loc_a loc_b cabinet_c"."""

    name: str
    feedback_rule: str
    template: str
    variables: dict[str, EntityInfo]
    assignment: dict[Placeholder, Variable]


class Game:
    """What a game file says, parsed and grounded.

    Attributes:
      params: what the expert must know: the fields of traj_data's pddl_params and "task_type".
      family: the task type.
      grammar: texts.
      sas: the planning task, as bytes for the planner library.
      entities: entity by PDDL name, with the name that the player reads.
    """

    def __init__(self, files: GameFiles, translation: Translation) -> None:
        """Builds a game from its files and their translation."""
        self.params = files.params
        self.family = files.params["task_type"]
        self.grammar = Grammar(files.grammar)
        self.sas = translation.sas.encode()
        self._translation = translation
        self._types = _type_hierarchy(translation)
        self._type_of = dict(translation.objects)
        self._fluents = frozenset(translation.fluents)
        self._atoms: dict[bytes, tuple[Proposition, Proposition | None, bool]] = {}
        self._actions: dict[int, GroundAction] = {}
        self._commands: dict[int, str] = {}
        self._readable: dict[Proposition, str] = {}
        self._start: dict[textworld.logic.Signature, frozenset[Proposition]] | None = None
        self.entities: dict[str, EntityInfo] = {}

    def start(self, planner: ctypes.CDLL) -> FactState:
        """Puts `planner` at the game's start and returns the facts that hold there."""
        planner.load_sas(self.sas)
        if self._start is None:
            facts = [self._fact(*fact) for fact in self._translation.facts]
            atoms = (fast_downward.Atom * planner.get_state_size())()
            planner.get_state(atoms)
            facts += [atom for atom, _, positive in map(self.atom, atoms) if positive]
            self._start = group_facts(facts)
            self.entities = _name_entities(facts)
        return FactState(self._types, self.entities, self._start)

    def atom(self, atom: fast_downward.Atom) -> tuple[Proposition, Proposition, bool]:
        """Returns a planner atom as a fact, its negation, and whether it is positive."""
        known = self._atoms.get(atom._name)
        if known is None:
            kind, rest = atom.name.split(" ", 1)
            name, arguments = rest.split("(", 1)
            arguments = [argument for argument in arguments[:-1].split(", ") if argument]
            fact, negation = self._fact(name, *arguments), self._fact("not_" + name, *arguments)
            positive = kind != "NegatedAtom"
            known = self._atoms[atom._name] = (fact, negation, True) if positive else (negation, fact, False)
        return known

    def action(self, operator: fast_downward.Operator) -> GroundAction:
        """Returns what a planner operator means."""
        known = self._actions.get(operator.id)
        if known is None:
            name, *arguments = operator.name.split()
            parameters = [Placeholder(*parameter) for parameter in self._translation.actions[name]]
            bound = {p: Variable(a, p.type) for p, a in zip(parameters, arguments, strict=False)}
            rule = self.grammar.actions[name]
            variables = {p.name: self.entities[v.name] for p, v in bound.items()}
            known = GroundAction(operator.name, rule.feedback_rule, rule.template, variables, bound)
            self._actions[operator.id] = known
        return known

    def command(self, operator: fast_downward.Operator, state: FactState) -> str:
        """Returns the text the player types for an operator; kept when it can never change."""
        known = self._commands.get(operator.id)
        if known is not None:
            return known
        action = self.action(operator)
        text = self.grammar.derive(action.template, state, action.variables, action.assignment)
        if is_static(action.template, self._fluents):
            self._commands[operator.id] = text
        return text

    def readable(self, fact: Proposition) -> str:
        """Returns a fact with the names the player reads, e.g. "inreceptacle mug 1 shelf 2"."""
        known = self._readable.get(fact)
        if known is None:
            names = (self.entities[variable.name].name.strip() for variable in fact.arguments)
            known = self._readable[fact] = " ".join((fact.name, *names))
        return known

    def _fact(self, name: str, *arguments: str) -> Proposition:
        return make_proposition(name, (Variable(argument, self._type_of[argument]) for argument in arguments))


@dataclasses.dataclass(frozen=True)
class GameFiles:
    """The text of a game's two files.

    Attributes:
      domain: PDDL domain.
      problem: PDDL problem.
      grammar: the grammar with the task sentence in it.
      params: pddl_params and task_type of traj_data.json.
    """

    domain: str
    problem: str
    grammar: str
    params: dict[str, Any]


def read_game(path: pathlib.Path) -> GameFiles:
    """Reads a game file and the traj_data.json beside it.

    Raises:
      DataError: a file is missing, is no JSON, or lacks a field; the message names it.
    """
    game = _read_json(path, ("pddl_domain", "pddl_problem", "grammar"))
    beside = path.parent / TRAJECTORY_FILE
    trajectory = _read_json(beside, ("task_type", "pddl_params"))
    params = trajectory["pddl_params"]
    if trajectory["task_type"] not in FAMILIES:
        raise DataError(f"{beside}: task_type is {trajectory['task_type']!r}; expected one of {', '.join(FAMILIES)}")
    for field in ("object_target", "parent_target", "toggle_target"):
        if not isinstance(params, dict) or not isinstance(params.get(field), str):
            raise DataError(f"{beside}: pddl_params has no text field {field!r}")
    params = {**params, "task_type": trajectory["task_type"]}
    return GameFiles(game["pddl_domain"], game["pddl_problem"], game["grammar"], params)


def _read_json(path: pathlib.Path, fields: tuple[str, ...]) -> dict[str, Any]:
    """Reads a JSON object that must have `fields`."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    missing = [field for field in fields if not isinstance(data, dict) or field not in data]
    if missing:
        raise DataError(f"{path} is no ALFWorld file: it lacks {', '.join(missing)}")
    return data


class GameCache:
    """The games a process has loaded, the least recently used ones dropped first."""

    def __init__(self, size: int = 64, translations: pathlib.Path | None = None) -> None:
        """Makes an empty cache.

        Args:
          size: games kept.
          translations: folder where grounded problems are kept across processes; None keeps none.
        """
        self._size = size
        self._translations = translations
        self._games: OrderedDict[str, Game] = OrderedDict()

    def load(self, path: pathlib.Path) -> Game:
        """Returns a game, read only when it is not in the cache.

        Raises:
          DataError: a file is missing or broken; the message names it.
        """
        key = os.fspath(path)
        if key in self._games:
            self._games.move_to_end(key)
            return self._games[key]
        files = read_game(path)
        try:
            game = Game(files, load_translation(files.domain, files.problem, self._translations))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        self._games[key] = game
        if len(self._games) > self._size:
            self._games.popitem(last=False)
        return game


def _type_hierarchy(translation: Translation) -> TypeHierarchy:
    """Returns the types of a problem as queries need them."""
    types = TypeHierarchy()
    added = set()
    for name, supertypes in translation.types:
        if name not in added:  # ALFRED declares its own "object" after PDDL's: the first stands, as in the stock engine
            types.add(textworld.logic.Type(name, supertypes))
            added.add(name)
    return types


def _name_entities(facts: list[Proposition]) -> dict[str, EntityInfo]:
    """Gives every entity the name the player reads, e.g. "cabinet 3", with ALFWorld's own numbering."""
    entities = {
        variable.name: EntityInfo(variable.name, variable.type) for fact in facts for variable in fact.arguments
    }
    demangler = Demangler(game_infos=entities)
    for entity in entities.values():
        entity.name = demangler.demangle_alfred_name(entity.id)
        entity.definite, entity.indefinite = "the", "a"
    return entities
