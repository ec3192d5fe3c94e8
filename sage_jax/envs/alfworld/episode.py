"""One episode on the planner library: which commands are possible, what they do, and what the player reads."""

from __future__ import annotations

import fast_downward

from sage_jax.envs.alfworld.game import Game
from sage_jax.envs.alfworld.planner import PlannerLibrary

NOTHING = "Nothing happens."


class Episode:
    """The state of one game being played. The planner library holds one state, so each live episode has its own copy.

    Attributes:
      game: the game being played.
      feedback: the last text, exactly the stock engine's.
      commands: admissible commands, sorted, "help" included.
      won: whether the goal holds.
    """

    def __init__(self, game: Game, planner: PlannerLibrary) -> None:
        """Begins a game; another episode on the same planner ends this one."""
        self.game = game
        self._planner = planner
        self._state = game.start(planner.library)
        self._operators: dict[str, fast_downward.Operator] = {}
        self.commands: tuple[str, ...] = ()
        self.won = False
        self.feedback = game.grammar.derive("#intro#", self._state, {}, {})
        self._refresh()

    def play(self, command: str) -> bool:
        """Plays a command; returns False, and changes nothing, when it is not possible."""
        operator = self._operators.get(command.strip())
        if operator is None:
            self.feedback = NOTHING
            return False
        action = self.game.action(operator)
        effects = (fast_downward.Atom * operator.nb_effect_atoms)()
        self._planner.library.apply_operator(operator.id, effects)
        for fact, negation, _ in map(self.game.atom, effects):
            self._state.remove_fact(negation)
            self._state.add_fact(fact)
        self.feedback = self.game.grammar.derive(action.feedback_rule, self._state, action.variables, action.assignment)
        self._refresh()
        return True

    def readable_facts(self, names: frozenset[str]) -> list[str]:
        """Returns the facts of some predicates as the player would read them, e.g. "holds agent mug 1", sorted."""
        return sorted(self.game.readable(fact) for fact in self._state.facts if fact.name in names)

    def _refresh(self) -> None:
        """Asks the planner what is possible now."""
        library = self._planner.library
        operators = (fast_downward.Operator * library.get_applicable_operators_count())()
        library.get_applicable_operators(operators)
        self._operators = {}
        for operator in operators:  # the first operator of a command is the one that counts, as in the stock engine
            self._operators.setdefault(self.game.command(operator, self._state), operator)
        self.commands = tuple(sorted(self._operators))
        self.won = bool(library.check_goal())
