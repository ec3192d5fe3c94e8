"""Text of the game from its grammar: the stock derivation without re-parsing and deep copies.

TextWorld parses every template anew and deep-copies the whole context for every symbol. Here parses are cached and
contexts are shared (nothing writes to them). The words that come out are the same; the tests compare them with the
stock engine's over whole episodes.
"""

from __future__ import annotations

import builtins
import functools
import json
import re
from collections.abc import Mapping
from types import CodeType

import textworld.logic
from textworld.envs.pddl import textgen
from textworld.envs.pddl.logic import GameLogic
from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Rule, Variable

Variables = Mapping[str, EntityInfo]
Assignment = Mapping[Placeholder, Variable]

_TASK = re.compile(r'"rhs"\s*:\s*"Your task is to: (?P<task>(?:[^"\\]|\\.)*)"')
_PLAIN = re.compile(r"\w[\w ,.'!?-]*")  # nothing that the grammar treats specially
_PLACEHOLDER_TASK = "UNKNOWN GOAL."


@functools.lru_cache(maxsize=4096)
def parse_template(template: str) -> tuple[textgen.Symbol, ...]:
    """Parses a grammar template into symbols that are only ever read."""
    if _PLAIN.fullmatch(template):
        return (textgen.TerminalSymbol(template),)  # most task sentences: 5 ms of parsing saved for each game
    return tuple(textgen._parse_and_convert(template, rule_name="symbols"))


@functools.lru_cache(maxsize=4096)
def parse_query(query: str) -> Rule:
    """Parses a conjunctive query of the grammar, e.g. `inreceptacle(o:object, r:receptacle)`."""
    return Rule.parse_conjunctive_query(query)


@functools.lru_cache(maxsize=4096)
def _compile(expression: str) -> CodeType:
    return compile(expression.strip(), "<grammar>", "eval")


@functools.lru_cache(maxsize=64)
def _parse_logic(grammar: str) -> GameLogic:
    return GameLogic(domain="", grammar=grammar)


class Grammar:
    """The grammar of one game: action templates and production rules.

    Attributes:
      actions: PDDL action name -> its textworld action (template and feedback rule).
    """

    def __init__(self, text: str) -> None:
        """Parses a grammar; games whose grammars differ in the task sentence alone share one parse.

        Args:
          text: the grammar as stored in a game file.
        """
        found = _TASK.findall(text)
        shared = text.replace(found[0], _PLACEHOLDER_TASK) if len(found) == 1 else text
        logic = _parse_logic(shared)
        self.actions = logic.actions
        self._rules = dict(logic.grammar._rules)
        if len(found) == 1:
            self._rules["task"] = [_production("task", "Your task is to: " + json.loads(f'"{found[0]}"'))]

    def derive(self, template: str, state: textworld.logic.State, variables: Variables, assignment: Assignment) -> str:
        """Returns the text of a template.

        Args:
          template: e.g. "#GotoLocation.feedback#".
          state: the facts that conditions and queries are asked of.
          variables: entity by placeholder name.
          assignment: PDDL variable by placeholder.
        """
        stack = [(symbol, variables, assignment) for symbol in reversed(parse_template(template))]
        words: list[str] = []
        while stack:
            symbol, known, bound = stack.pop()
            if isinstance(symbol, textgen.TerminalSymbol):
                words.append(str(symbol))
            elif isinstance(symbol, textgen.NonterminalSymbol):
                rhs = self._first_rule(str(symbol), state, bound).rhs
                stack.extend((item, known, bound) for item in reversed(rhs))
            elif isinstance(symbol, textgen.EvalSymbol):
                words.append(str(eval(_compile(symbol.expression), {"__builtins__": builtins}, dict(known))))
            elif isinstance(symbol, textgen.ListSymbol):
                stack.extend(reversed(_listed(_expand(symbol.symbol, state, known, bound), known, bound)))
            elif isinstance(symbol, textgen.ConditionalSymbol):
                stack.extend(reversed(_expand(symbol, state, known, bound)))
            else:
                raise TypeError(f"unknown grammar symbol {symbol!r}")
        return "".join(words)

    def _first_rule(self, name: str, state: textworld.logic.State, assignment: Assignment) -> textgen.ProductionRule:
        """Returns the first rule of a symbol whose condition holds, as the stock engine does."""
        for rule in self._rules.get(name, ()):
            if not rule.condition or any(True for _ in state.all_assignments(parse_query(rule.condition), assignment)):
                return rule
        raise textgen.CSGUnknownSymbolError(name)


def _production(name: str, rhs: str) -> textgen.ProductionRule:
    return textgen.ProductionRule(lhs=name, rhs=list(parse_template(rhs)))


def _expand(symbol: textgen.ConditionalSymbol, state, variables: Variables, assignment: Assignment) -> list[tuple]:
    """Returns the symbol's expression once for each answer to its query."""
    if not symbol.given:
        return [(symbol.expression, variables, assignment)]
    answers = []
    for match in state.all_assignments(parse_query(symbol.given), assignment):
        named = {placeholder.name: state.entities[variable.name] for placeholder, variable in match.items()}
        answers.append((symbol.expression, {**variables, **named}, {**assignment, **match}))
    return answers


def _listed(items: list[tuple], variables: Variables, assignment: Assignment) -> list[tuple]:
    """Puts the grammar's separators between items: "a, b, and c", or its word for an empty list."""

    def word(name: str) -> tuple:
        return (textgen.NonterminalSymbol(name), variables, assignment)

    if len(items) < 2:
        return items or [word("list_empty")]
    listed = items[:1]
    for item in items[1:-1]:
        listed += [word("list_separator"), item]
    return [*listed, word("list_last_separator"), items[-1]]


def is_static(template: str, fluents: frozenset[str]) -> bool:
    """Whether a template's text can never change during an episode (it asks about no fluent) and may be cached."""
    for symbol in parse_template(template):
        inner = symbol.symbol if isinstance(symbol, textgen.ListSymbol) else symbol
        if isinstance(inner, textgen.NonterminalSymbol):
            return False
        if isinstance(inner, textgen.ConditionalSymbol):
            if isinstance(inner.expression, textgen.NonterminalSymbol):
                return False
            if inner.given and any(p.name in fluents for p in parse_query(inner.given).preconditions):
                return False
    return True
