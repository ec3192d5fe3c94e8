"""An agent that writes code: its actions are kept to the letter, and functions it was given lie in its shell.

    load the programs into the shell, one by one -> show those that loaded -> code, output, code, output, ...
    -> ask the shell which of them were called

SAGE's agent (arXiv 2512.17102) is asked to define a function and to call it in the same turn; what ran is kept by the
method (`methods.libraries`). A turn without code ends the episode.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sage_jax.agents.code_prompts import code_opening
from sage_jax.agents.episode import Episode, EpisodePlan, Player
from sage_jax.agents.parsing import ActParse, parse_code
from sage_jax.envs.base import StepResult
from sage_jax.skills.programs import TRACE_QUERY, Loading, load_programs, traced_uses


class CodePlayer(Player):
    """Plays plans whose environment is a shell (`envs.base.ShellEnvironment`)."""

    def __init__(self, *args: Any, guide: bool = False, **options: Any) -> None:
        """As `Player`; `guide`: the first message says how to work in the shell (small models do without)."""
        super().__init__(*args, **options)
        self.guide = guide

    def episode(self, plan: EpisodePlan, name: str) -> CodeEpisode:
        """Returns what plays one plan."""
        return CodeEpisode(self, plan, name)


class CodeEpisode(Episode):
    """One episode in a shell."""

    def __init__(self, player: CodePlayer, plan: EpisodePlan, name: str) -> None:
        """As `Episode`; nothing is loaded yet."""
        super().__init__(player, plan, name)
        self._guide = player.guide
        self._loading = Loading((), {})
        self._called: frozenset[str] = frozenset()

    async def _prepare(self) -> None:
        await super()._prepare()
        if self._plan.programs:
            self._loading = await load_programs(self._plan.programs, self._run, credit=self._plan.credit)

    async def _run(self, code: str) -> tuple[bool, str]:
        return await self._player.pool.run(self.name, code)

    def _opening(self, text: str) -> str:
        return super()._opening(code_opening(text, self._loading.loaded, guide=self._guide))

    def _parse(self, output: str, *, truncated: bool, admissible: tuple[str, ...]) -> ActParse:
        return parse_code(output, truncated=truncated)

    def _note(self, result: StepResult) -> None:
        """Keeps whether the code ran, which decides what of it is kept, and the share of tests passed."""
        turn = self._turns[-1]
        self._turns[-1] = dataclasses.replace(turn, info={**turn.info, "ran": not result.info["failed"]})
        if "total" in result.info:
            self._score = result.info["passed"] / max(result.info["total"], 1)

    async def _conclude(self) -> None:
        if self._loading.loaded and self._plan.credit == "trace" and self._turns:
            _, said = await self._run(TRACE_QUERY)
            self._called = traced_uses(said, [program.name for program in self._loading.loaded])

    def _more_info(self) -> dict[str, Any]:
        return {
            "programs": [program.name for program in self._loading.loaded],
            "dropped": self._loading.failed,
            "called": sorted(self._called),
        }
