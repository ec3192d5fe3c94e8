"""Expert episodes of an agent that writes code, in the real shells, for the SFT cold start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from sage_jax.agents.code_prompts import code_opening, code_text
from sage_jax.data.sft import Message
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import DataError
from sage_jax.seeding import derive_seed
from sage_jax.skills.programs import Program, load_programs
from sage_jax.types import Task


class Coder(Protocol):
    """A scripted programmer in one episode.

    Attributes:
      programs: what it is given.
    """

    programs: tuple[Program, ...]

    def act(self) -> str | None:
        """Returns the code of the next turn, None after the last."""


async def code_episodes(
    pool: EnvPool,
    tasks: Sequence[Task],
    count: int,
    make_expert: Callable[[str, str, random.Random], Coder],
    *,
    seed: int,
    guide: bool,
    concurrency: int = 8,
) -> list[list[Message]]:
    """Plays `count` expert episodes over `tasks` in an order of the seed; returns those that succeed, as conversations.

    Raises:
      DataError: there are no tasks, no expert, or the expert solves none.
      EnvError: an environment failed.
    """
    if not tasks:
        raise DataError("no training tasks for the SFT cold start: make some or set sft_episodes=0")
    gate = asyncio.Semaphore(concurrency)
    order = random.Random(derive_seed(seed, "expert_tasks")).sample(range(len(tasks)), len(tasks))

    async def one(index: int) -> list[Message] | None:
        async with gate:
            seeded = derive_seed(seed, "expert", index)
            return await _play(pool, tasks[order[index % len(tasks)]], make_expert, seeded, guide)

    played = await asyncio.gather(*(one(index) for index in range(count)))
    solved = [messages for messages in played if messages is not None]
    if not solved:
        raise DataError(f"the expert solved none of {count} episodes")
    return solved


async def _play(
    pool: EnvPool, task: Task, make_expert: Callable[[str, str, random.Random], Coder], seed: int, guide: bool
) -> list[Message] | None:
    name = f"expert/{seed}"
    text = (await pool.reset(name, task, seed)).text
    try:
        expert = make_expert(text, task.family, random.Random(seed))
        loading = await load_programs(expert.programs, lambda code: pool.run(name, code), credit="name")
        messages: list[Message] = [("user", code_opening(text, loading.loaded, guide=guide), False)]
        while (code := expert.act()) is not None:
            messages.append(("assistant", code_text(code), True))
            result = await pool.step(name, code)
            if result.done:
                return messages if result.won else None
            messages.append(("user", result.text, False))
    finally:
        await pool.release(name)
    return None
