"""The facts of one episode, kept as the stock engine keeps them, with the bookkeeping it never reads left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import textworld.logic
from textworld.generator.game import EntityInfo
from textworld.logic import Proposition, TypeHierarchy, Variable


def make_proposition(name: str, arguments: Iterable[Variable]) -> Proposition:
    """Returns a proposition without textworld's process-wide memo, which keeps every one of every game for ever."""
    return type.__call__(Proposition, name, tuple(arguments))


class FactState(textworld.logic.State):
    """Facts by signature, and queries over them.

    Attributes:
      entities: entity by PDDL name, for the grammar.
    """

    def __init__(
        self,
        types: TypeHierarchy,
        entities: Mapping[str, EntityInfo],
        facts: Mapping[textworld.logic.Signature, frozenset[Proposition]],
    ) -> None:
        self._logic = _Types(types)
        self._facts = defaultdict(set, {signature: set(known) for signature, known in facts.items()})
        self.entities = entities

    def add_fact(self, prop: Proposition) -> None:
        """Adds a fact. The variable counts of the base class serve queries with free variables; grammars have none."""
        self._facts[prop.signature].add(prop)

    def remove_fact(self, prop: Proposition) -> None:
        """Removes a fact if it is there."""
        self._facts[prop.signature].discard(prop)


class _Types:
    """The one attribute that the base class reads of its logic."""

    def __init__(self, types: TypeHierarchy) -> None:
        self.types = types


def group_facts(facts: Iterable[Proposition]) -> dict[textworld.logic.Signature, frozenset[Proposition]]:
    """Groups facts by signature, as `FactState` starts from."""
    groups: dict[textworld.logic.Signature, set[Proposition]] = defaultdict(set)
    for fact in facts:
        groups[fact.signature].add(fact)
    return {signature: frozenset(known) for signature, known in groups.items()}
