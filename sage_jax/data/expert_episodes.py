"""Expert episodes on the real engine, for the SFT cold start: acts with short thoughts, then a review turn.

Half of the episodes show search hints drawn from the room, as skills would, and the expert follows them, so that the
cold start keeps what the base model learned: skills are there to be used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from sage_jax.agents.chat import act_text, opening_message, review_message, review_text
from sage_jax.agents.expert import HouseholdExpert, expert_review, hint_skill, list_things
from sage_jax.data.sft import Message
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import DataError
from sage_jax.seeding import derive_seed
from sage_jax.types import Task


async def expert_episodes(
    pool: EnvPool, tasks: Sequence[Task], count: int, *, seed: int, max_steps: int, concurrency: int = 32
) -> list[list[Message]]:
    """Plays `count` expert episodes over `tasks` in turn and returns those that succeed, as conversations.

    Raises:
      DataError: there are no tasks, or the expert solves none of them within `max_steps`.
      EnvError: an environment failed.
    """
    if not tasks:
        raise DataError("no training tasks for the SFT cold start: raise games_train or set sft_episodes=0")
    gate = asyncio.Semaphore(concurrency)

    async def one(index: int) -> list[Message] | None:
        async with gate:
            return await _play(pool, tasks[index % len(tasks)], derive_seed(seed, "expert", index), max_steps)

    played = await asyncio.gather(*(one(index) for index in range(count)))
    solved = [messages for messages in played if messages is not None]
    if not solved:
        raise DataError(f"the expert solved none of {count} episodes within max_steps={max_steps}; raise it")
    return solved


async def _play(pool: EnvPool, task: Task, seed: int, max_steps: int) -> list[Message] | None:
    """Returns one solved episode with its review, or None."""
    rng, name = random.Random(seed), f"expert/{seed}"
    text = (await pool.reset(name, task, seed)).text
    try:
        types = sorted({thing.split()[0] for thing in list_things(text.partition("Your task")[0])})
        hints = rng.sample(types, min(rng.choice((0, 0, 1, 2)), len(types)))
        skills = [hint_skill(kind) for kind in hints]
        expert = HouseholdExpert(text, " ".join(principle for _, principle in skills), rng)
        messages: list[Message] = [("user", opening_message(text, skills), False)]
        for steps in range(1, max_steps + 1):  # noqa: B007  (read after the loop)
            thought, action = expert.act(text)
            messages.append(("assistant", act_text(thought, action), True))
            result = await pool.step(name, action)
            text = result.text
            if result.won:
                break
            messages.append(("user", text, False))
        else:
            return None
    finally:
        await pool.release(name)
    titles = [title for title, _ in skills]
    message = review_message(family=task.family, success=True, steps=steps, titles=titles)
    call = expert_review(expert, task.family, rng)
    return [*messages, ("user", message, False), ("assistant", review_text(*call), True)]
