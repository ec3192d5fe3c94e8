"""Plays plans in a shell with a task LLM behind an endpoint: text in, code out. For expert conversations.

It stands where `coding.CodePlayer` stands, but gives no token ids: its trajectories are for reading and for SFT sets.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from sage_jax.agents.code_prompts import code_opening
from sage_jax.agents.episode import EpisodePlan
from sage_jax.agents.parsing import parse_code
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import BudgetError, EngineError, EnvError
from sage_jax.rollout.task_llm import ChatRequest, TaskLlm
from sage_jax.seeding import derive_seed
from sage_jax.skills.programs import TRACE_QUERY, Loading, load_programs, traced_uses
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn


@dataclasses.dataclass(frozen=True)
class LlmCoder:
    """A player of plans (`play`).

    Attributes:
      llm: writes the turns.
      pool: of shells.
      max_steps: turns of an episode.
      max_tokens: of one turn.
      guide: whether the first message says how to work in the shell.
    """

    llm: TaskLlm
    pool: EnvPool
    max_steps: int = 40
    max_tokens: int = 1500
    guide: bool = True
    _numbers: Any = dataclasses.field(default_factory=itertools.count, repr=False)

    async def play(self, plan: EpisodePlan) -> Trajectory:
        """Plays one episode; what fails through no fault of the LLM becomes the trajectory's status.

        `info["messages"]` is the conversation as (role, text, trained), its last turn the one that completed the task.

        Raises:
          BudgetError: the LLM's budget is used up.
        """
        name = f"{plan.group}/{plan.seed}/{next(self._numbers)}"
        talk = _Talk(plan.task)
        try:
            await self._play(plan, name, talk)
        except BudgetError:
            raise
        except EnvError as error:
            talk.status, talk.error = Status.ENV_ERROR, str(error)
        except EngineError as error:
            talk.status, talk.error = Status.ENGINE_ERROR, str(error)
        finally:
            await self.pool.release(name)
        return talk.trajectory(plan)

    async def _play(self, plan: EpisodePlan, name: str, talk: _Talk) -> None:
        async def run(code: str) -> tuple[bool, str]:
            return await self.pool.run(name, code)

        text = (await self.pool.reset(name, plan.task, plan.seed)).text
        if plan.programs:
            talk.loading = await load_programs(plan.programs, run, credit=plan.credit)
        talk.messages.append(("user", code_opening(text, talk.loading.loaded, guide=self.guide), False))
        for step in range(self.max_steps):
            chat = tuple({"role": role, "content": said} for role, said, _ in talk.messages)
            seed = derive_seed(plan.seed, "turn", step)
            reply = await self.llm.complete(
                ChatRequest(chat, seed=seed, temperature=plan.temperature, max_tokens=self.max_tokens)
            )
            talk.tokens += reply.completion_tokens
            code = parse_code(reply.text, truncated=reply.finish_reason == "length").action
            if code is None:
                talk.no_code = True
                break
            result = await self.pool.step(name, code)
            talk.messages.append(("assistant", reply.text, True))
            talk.turns.append({"action": code, "ran": not result.info["failed"]})
            talk.won = bool(result.won)
            if result.done:
                break
            talk.messages.append(("user", result.text, False))
        else:
            talk.status = Status.TRUNCATED
        if talk.loading.loaded and plan.credit == "trace":
            said = (await run(TRACE_QUERY))[1]
            talk.called = traced_uses(said, [program.name for program in talk.loading.loaded])


@dataclasses.dataclass
class _Talk:
    """The state of one episode."""

    task: Task
    messages: list[tuple[str, str, bool]] = dataclasses.field(default_factory=list)
    turns: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    loading: Loading = Loading((), {})
    called: frozenset[str] = frozenset()
    status: Status = Status.OK
    error: str = ""
    won: bool = False
    no_code: bool = False
    tokens: int = 0

    def trajectory(self, plan: EpisodePlan) -> Trajectory:
        turns = tuple(Turn("act", (), (), (), number == 0, info=info) for number, info in enumerate(self.turns))
        value = float(self.won) if self.status.has_reward else None
        info = {
            "success": self.won,
            "score": float(self.won),
            "steps": len(turns),
            "tokens": self.tokens,
            "ended_by_turn": self.no_code,
            "error": self.error,
            "programs": [program.name for program in self.loading.loaded],
            "dropped": self.loading.failed,
            "called": sorted(self.called),
            "messages": list(self.messages),
        }
        return Trajectory(self.task, plan.group, plan.seed, turns, RewardResult(value, self.status), info)
