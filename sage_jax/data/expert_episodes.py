"""Expert episodes in the real environments, for the SFT cold start: acts with short thoughts, then a review turn.

What the expert knows comes from its benchmark (`Demonstrator`). It may show skills and follow them, so that the cold
start keeps what the base model learned: skills are there to be used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from sage_jax.agents.chat import act_text, opening_message, review_message, review_text
from sage_jax.data.sft import Message
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import DataError
from sage_jax.seeding import derive_seed
from sage_jax.types import Task


class Demonstrator(Protocol):
    """A scripted expert in one episode: it reads what an agent reads, and shows how to think, act and review.

    Attributes:
      skills: (title, principle) of the skills the episode is shown, which the expert follows.
    """

    skills: Sequence[tuple[str, str]]

    def act(self, observation: str) -> tuple[str, str]:
        """Returns the thought and the action after an observation, the first one included."""

    def review(self) -> tuple[str, dict]:
        """Returns the thought and the tool call of the review turn of an episode that was won."""


# (first observation, family, rng) -> expert, as `Benchmark.demonstrator`
MakeDemonstrator = Callable[[str, str, random.Random], Demonstrator]


async def expert_episodes(
    pool: EnvPool,
    tasks: Sequence[Task],
    count: int,
    make_expert: MakeDemonstrator,
    *,
    seed: int,
    max_steps: int,
    concurrency: int = 32,
) -> list[list[Message]]:
    """Plays `count` expert episodes over `tasks` in turn and returns those that succeed, as conversations.

    Raises:
      DataError: there are no tasks, or the expert solves none of them within `max_steps`.
      EnvError: an environment failed.
    """
    if not tasks:
        raise DataError("no training tasks for the SFT cold start: make some or set sft_episodes=0")
    gate = asyncio.Semaphore(concurrency)

    async def one(index: int) -> list[Message] | None:
        async with gate:
            seeded = derive_seed(seed, "expert", index)
            return await _play(pool, tasks[index % len(tasks)], make_expert, seeded, max_steps)

    played = await asyncio.gather(*(one(index) for index in range(count)))
    solved = [messages for messages in played if messages is not None]
    if not solved:
        raise DataError(f"the expert solved none of {count} episodes within max_steps={max_steps}; raise it")
    return solved


async def _play(
    pool: EnvPool, task: Task, make_expert: MakeDemonstrator, seed: int, max_steps: int
) -> list[Message] | None:
    """Returns one solved episode with its review, or None."""
    name = f"expert/{seed}"
    text = (await pool.reset(name, task, seed)).text
    try:
        expert = make_expert(text, task.family, random.Random(seed))
        messages: list[Message] = [("user", opening_message(text, expert.skills), False)]
        for steps in range(1, max_steps + 1):  # noqa: B007  (read after the loop)
            thought, action = expert.act(text)
            messages.append(("assistant", act_text(thought, action), True))
            result = await pool.step(name, action)
            text = result.text
            if result.won:
                break
            if result.done:
                return None
            messages.append(("user", text, False))
        else:
            return None
    finally:
        await pool.release(name)
    titles = [title for title, _ in expert.skills]
    message = review_message(family=task.family, success=True, steps=steps, titles=titles)
    return [*messages, ("user", message, False), ("assistant", review_text(*expert.review()), True)]
