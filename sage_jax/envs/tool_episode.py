"""One episode of a benchmark whose actions are tool calls and whose end is an answer: GAIA, WebWalkerQA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sage_jax.envs.base import StepResult
from sage_jax.errors import EnvError
from sage_jax.tools import ANSWER, Toolbox, ToolOutcome, parse_action

_WRONG = (ToolOutcome.UNKNOWN_TOOL, ToolOutcome.BAD_ARGUMENTS)
# (answer) -> whether it is right, and what else is known of it
Grade = Callable[[str], tuple[bool, Mapping[str, Any]]]


class ToolEpisode:
    """Plays actions until an answer is given."""

    def __init__(
        self,
        toolbox: Toolbox,
        grade: Grade,
        *,
        admissible: Callable[[], tuple[str, ...]] = tuple,
        plan: Sequence[str] | None = None,
    ):
        """Starts an episode.

        Args:
          toolbox: the tools there are.
          grade: judges an answer.
          admissible: actions to list now; none lists nothing.
          plan: the expert's actions, for infos with "expert_action"; None leaves that out.
        """
        self._toolbox, self._grade, self._list = toolbox, grade, admissible
        self._plan = None if plan is None else list(plan)

    @property
    def admissible(self) -> tuple[str, ...]:
        """Actions to list now."""
        return self._list()

    @property
    def info(self) -> dict[str, Any]:
        """What the first observation's info holds besides the task: "tools", and "expert_action" if asked for."""
        return {"tools": [spec.to_json() for spec in self._toolbox.specs], **self._expert()}

    def step(self, action: str) -> StepResult:
        """Plays an action.

        Info: "outcome" (how the call ended), "invalid" (it was no call, or one of no tool); after an answer also
        "answer" and what the grade says.
        """
        call = parse_action(action)
        self._advance(action)
        if call.name == ANSWER:
            won, known = self._grade(call.arguments)
            info = {"outcome": ToolOutcome.OK.value, "invalid": False, "answer": call.arguments, **known}
            return StepResult("Answered.", (), float(won), True, won, {**info, **self._expert()})
        if call.problem:
            text, outcome = call.problem, ToolOutcome.BAD_ARGUMENTS
        else:
            result = self._toolbox.call(call.name, call.arguments)
            text, outcome = result.text, result.outcome
        if outcome is not ToolOutcome.OK:
            text = f"[{outcome.value}] {text}"
        info = {"outcome": outcome.value, "invalid": outcome in _WRONG, **self._expert()}
        return StepResult(text, self.admissible, 0.0, False, False, info)

    def _advance(self, action: str) -> None:
        """Moves the expert's plan on; an action of someone else's makes it give up."""
        if self._plan is not None:
            self._plan = self._plan[1:] if self._plan and action == self._plan[0] else []

    def _expert(self) -> dict[str, Any]:
        return {} if self._plan is None else {"expert_action": self._plan[0] if self._plan else None}


class ToolEnv:
    """An environment whose episodes are tools and an answer; `reset` of a subclass sets `_episode`."""

    def __init__(self) -> None:
        """Starts without an episode."""
        self._episode: ToolEpisode | None = None

    def step(self, action: str) -> StepResult:
        """Plays an action (see `ToolEpisode.step`); an answer's info has what the episode's grader adds.

        Raises:
          EnvError: no episode is running.
        """
        if self._episode is None:
            raise EnvError("step() was called without a running episode; call reset() first")
        result = self._episode.step(action)
        if result.done:
            self._episode = None
        return result

    def close(self) -> None:
        """Ends the episode; what episodes share belongs to the process."""
        self._episode = None
