"""A scripted programmer for the generated AppWorld tasks: looks up documents, defines and calls, completes.

It knows the solution of each instruction. Where it is shown the functions it needs, it calls them at once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from sage_jax.errors import DataError
from sage_jax.skills.programs import Program, extract_programs

COMPLETE = "apis.supervisor.complete_task(answer=answer)"


class CodeDemonstrator:
    """The programmer in an episode of a cold start, which half of the time has the functions already.

    Attributes:
      programs: functions that lie in the shell and are shown.
    """

    def __init__(
        self, observation: str, solutions: Mapping[str, tuple[str, str]], rng: random.Random, *, lookups: bool = True
    ) -> None:
        """Finds the solution.

        Args:
          observation: the first one; it begins with the instruction.
          solutions: instruction -> (functions, call).
          rng: decides whether the functions are there.
          lookups: whether it reads the documents of the apps before it writes functions.

        Raises:
          DataError: no solution is known.
        """
        instruction = observation.partition("\n\nMy name is ")[0]
        if instruction not in solutions:
            raise DataError(f"no scripted solution for the task {instruction[:200]!r}")
        functions, call = solutions[instruction]
        self.programs: tuple[Program, ...] = extract_programs(functions) if rng.random() < 0.5 else ()
        work = f"answer = {call}\nprint(answer)"
        if self.programs:
            self._turns = [work, COMPLETE]
        else:
            self._turns = [*(document_lookups(functions) if lookups else ()), f"{functions}\n\n{work}", COMPLETE]

    def act(self) -> str | None:
        """Returns the code of the next turn, None after the last."""
        return self._turns.pop(0) if self._turns else None


def document_lookups(functions: str) -> tuple[str, ...]:
    """Returns the turns that list the APIs of the apps whose APIs are called, in order of their names."""
    apps = sorted(set(re.findall(r"apis\.([a-z_]+)\.", functions)) - {"supervisor"})
    return tuple(f"print(apis.api_docs.show_api_descriptions(app_name={app!r}))" for app in apps)
