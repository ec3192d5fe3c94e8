"""Plays one task with a black-box task LLM and tools: question, skill, calls, answer.

The LLM sees text only and gives text or tool calls only. Whatever it writes is played or answered with what was wrong;
what fails through no fault of its own ends the rollout with a status and without a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sage_jax.agents.gathering import StragglerError, Stragglers, map_some
from sage_jax.agents.judge import judge_answer
from sage_jax.agents.tool_prompts import opening, tool_texts
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import AbortedError, ConfigError, EngineError, EnvError
from sage_jax.rollout.task_llm import ChatRequest, RawToolCall, Reply, TaskLlm
from sage_jax.seeding import derive_seed
from sage_jax.skills.folders import SkillFile
from sage_jax.tools import ParsedCall, parse_react
from sage_jax.types import RewardResult, Status, Task

MODES = ("tools", "react")
_OLD_MARK = " [...]"


@dataclasses.dataclass(frozen=True)
class ToolAgentOptions:
    """How the task LLM is led. Raises ConfigError naming the field.

    Attributes:
      mode: "tools" (OpenAI tool calls) or "react" (text).
      max_steps: environment steps.
      max_tokens: of one answer.
      episode_tokens: prompt and completion tokens of a rollout; 0 is no limit. Past it the rollout is truncated.
      max_malformed: answers in a row that hold neither call nor answer; one more ends the rollout.
      old_chars: observations older than the last `fresh` are cut to so many characters; 0 keeps them whole.
      fresh: observations kept whole.
      temperature: of the task LLM.
      timeout_s: longest time of a rollout.
    """

    mode: str = "react"
    max_steps: int = 15
    max_tokens: int = 1024
    episode_tokens: int = 0
    max_malformed: int = 2
    old_chars: int = 1500
    fresh: int = 3
    temperature: float = 1.0
    timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"task_mode={self.mode!r}: must be one of {', '.join(MODES)}")
        for name in ("max_steps", "max_tokens", "fresh", "timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"tool agent {name}={getattr(self, name)} must be above 0")


@dataclasses.dataclass(frozen=True)
class TaskRollout:
    """One rollout of the task LLM under one skill (JSON-serialisable parts only).

    Attributes:
      task: the task.
      reward: 1.0 solved, 0.0 not; None after an infrastructure failure.
      answer: the final answer; "" when none was given.
      messages: the whole conversation, in OpenAI's format.
      info: steps, tokens, cost, outcomes of calls, score, why it ended.
    """

    task: Task
    reward: RewardResult
    answer: str
    messages: tuple[Mapping[str, Any], ...]
    info: Mapping[str, Any]


class ToolAgent:
    """Plays rollouts on one task LLM and one environment pool."""

    def __init__(
        self, llm: TaskLlm, pool: EnvPool, options: ToolAgentOptions | None = None, *, judge: TaskLlm | None = None
    ):
        """Takes the LLM, the environments, how to play, and who judges answers that the environment does not accept."""
        self.llm, self.pool, self.options = llm, pool, options or ToolAgentOptions()
        self.judge = judge
        self._numbers = itertools.count()

    async def play_all(
        self,
        plans: Sequence[tuple[Task, SkillFile | None, int]],
        *,
        concurrency: int,
        straggler_factor: float = 0.0,
    ) -> list[TaskRollout]:
        """Plays (task, skill, seed) plans, at most `concurrency` at a time, in the order given.

        Args:
          plans: to play.
          concurrency: rollouts at one time.
          straggler_factor: see `Stragglers`; 0 waits for all.
        """
        stragglers = Stragglers(straggler_factor, len(plans))
        return await map_some(lambda plan: self.play(*plan, stragglers), plans, concurrency=concurrency)

    async def play(
        self, task: Task, skill: SkillFile | None, seed: int, stragglers: Stragglers | None = None
    ) -> TaskRollout:
        """Plays one rollout; infrastructure failures become its status."""
        rollout = _Rollout(self, task, skill, seed, f"{task.id}/{seed}/{next(self._numbers)}")
        try:
            limit = contextlib.nullcontext() if stragglers is None else stragglers.limit()
            async with asyncio.timeout(self.options.timeout_s), limit:
                await rollout.run()
        except StragglerError as error:
            rollout.fail(Status.STRAGGLER, str(error))
        except TimeoutError:
            rollout.fail(Status.TIMEOUT, f"longer than timeout_s={self.options.timeout_s}")
        except EnvError as error:
            rollout.fail(Status.ENV_ERROR, f"{type(error).__name__}: {error}")
        except AbortedError as error:
            rollout.fail(Status.ABORTED, f"{type(error).__name__}: {error}")
        except EngineError as error:
            rollout.fail(Status.ENGINE_ERROR, f"{type(error).__name__}: {error}")
        finally:
            await self.pool.release(rollout.name)
        return rollout.result()


class _Rollout:
    """The state of one rollout while it is played."""

    def __init__(self, agent: ToolAgent, task: Task, skill: SkillFile | None, seed: int, name: str):
        self._agent, self._task, self._skill, self._seed, self.name = agent, task, skill, seed, name
        self._messages: list[dict[str, Any]] = []
        self._observations: list[int] = []  # places of observations among the messages
        self._outcomes: list[str] = []
        self._status, self._ended_by, self._answer = Status.OK, "", ""
        self._steps = self._tokens = self._turns = 0
        self._cost = self._score = 0.0
        self._won = False

    async def run(self) -> None:
        options = self._agent.options
        observation = await self._agent.pool.reset(self.name, self._task, self._seed)
        tools = tuple(observation.info.get("tools", ()))
        self._messages += opening(observation.text, tools, self._skill, options.mode)
        self._observations.append(len(self._messages) - 1)
        malformed = 0
        while self._steps < options.max_steps:
            if options.episode_tokens and self._tokens >= options.episode_tokens:
                self._end(Status.TRUNCATED, "tokens")
                return
            reply = await self._ask(tools)
            calls = self._read(reply)
            malformed = malformed + 1 if all(call.problem for _, call in calls) else 0
            if malformed > options.max_malformed:
                self._end(Status.OK, "malformed")
                return
            for raw, call in calls:
                if await self._play(raw, call):
                    return
        self._end(Status.TRUNCATED, "steps")

    async def _ask(self, tools: tuple[Mapping[str, Any], ...]) -> Reply:
        """Asks for the next turn and notes it."""
        options = self._agent.options
        request = ChatRequest(
            messages=tuple(self._shown()),
            tools=tools if options.mode == "tools" else (),
            seed=derive_seed(self._seed, "task-llm", self._turns),
            temperature=options.temperature,
            max_tokens=options.max_tokens,
        )
        reply = await self._agent.llm.complete(request)
        self._turns += 1
        self._tokens += reply.prompt_tokens + reply.completion_tokens
        self._cost += 0.0 if reply.cached else reply.cost
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.tool_calls:
            message["tool_calls"] = [_call_json(call) for call in reply.tool_calls]
        self._messages.append(message)
        return reply

    def _read(self, reply: Reply) -> list[tuple[RawToolCall | None, ParsedCall]]:
        """Returns what the turn asks for: at least one call, perhaps a malformed one."""
        if reply.tool_calls:
            return [(call, _parse_call(call)) for call in reply.tool_calls]
        return [(None, parse_react(reply.text))]

    async def _play(self, raw: RawToolCall | None, call: ParsedCall) -> bool:
        """Plays a call and notes the observation; whether the rollout is over."""
        if call.problem:
            self._observe(raw, f"[bad_arguments] {call.problem}. {tool_texts(self._agent.options.mode).reminder}")
            self._outcomes.append("malformed")
            self._steps += 1
            return False
        if self._steps >= self._agent.options.max_steps:  # the last of several calls of one turn
            self._observe(raw, "[no step is left]")
            return False
        result = await self._agent.pool.step(self.name, call.text)
        self._steps += 1
        self._outcomes.append(str(result.info.get("outcome", "ok")))
        if result.done:
            self._answer, self._won = str(result.info.get("answer", "")), bool(result.won)
            self._score = float(result.info.get("f1", result.reward))
            if self._agent.judge is not None and not self._won:
                self._won = await judge_answer(self._agent.judge, self._task, self._answer)
            self._end(Status.OK, "answer")
            return True
        self._observe(raw, result.text)
        return False

    def _observe(self, raw: RawToolCall | None, text: str) -> None:
        self._observations.append(len(self._messages))
        if raw is None:
            self._messages.append({"role": "user", "content": f"Observation: {text}"})
        else:
            self._messages.append({"role": "tool", "tool_call_id": raw.id, "content": text})

    def _shown(self) -> list[dict[str, Any]]:
        """Returns the conversation with old observations cut; the first, which holds the question, stays whole."""
        options = self._agent.options
        messages = list(self._messages)
        if options.old_chars:
            for place in self._observations[1 : -options.fresh]:
                text = messages[place]["content"]
                if len(text) > options.old_chars:
                    messages[place] = {**messages[place], "content": text[: options.old_chars] + _OLD_MARK}
        return messages

    def _end(self, status: Status, ended_by: str) -> None:
        self._status, self._ended_by = status, ended_by

    def fail(self, status: Status, reason: str) -> None:
        """Notes an infrastructure failure."""
        self._end(status, reason)

    def result(self) -> TaskRollout:
        """Returns what was played."""
        value = float(self._won) if self._status.has_reward else None
        info = {
            "success": self._won,
            "score": self._score,
            "steps": self._steps,
            "tokens": self._tokens,
            "cost": self._cost,
            "outcomes": list(self._outcomes),
            "ended_by": self._ended_by,
        }
        return TaskRollout(self._task, RewardResult(value, self._status), self._answer, tuple(self._messages), info)


def _parse_call(call: RawToolCall) -> ParsedCall:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return ParsedCall("", problem=f"the arguments of {call.name[:60]} are not JSON")
    if not isinstance(arguments, dict):
        return ParsedCall("", problem=f"the arguments of {call.name[:60]} are no JSON object")
    return ParsedCall(call.name, arguments)


def _call_json(call: RawToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
