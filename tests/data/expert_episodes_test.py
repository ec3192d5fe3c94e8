"""Expert episodes on the real engine: solved, every act trained on, hints half of the time, a fitting review."""

import asyncio
import dataclasses
import os
import signal

import pytest

from sage_jax.agents.expert import HouseholdDemonstrator
from sage_jax.agents.parsing import parse_act, parse_review
from sage_jax.data.expert_episodes import expert_episodes
from sage_jax.envs.alfworld import AlfworldFactory
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import DataError, EnvError
from sage_jax.skills import TOOLS


@pytest.fixture(scope="module")
def pool():
    with EnvPool(AlfworldFactory(), workers=1) as made:
        yield made


class FaultyPool:
    """The pool, with a worker that dies at the third step, or with another text when an episode starts."""

    def __init__(self, pool, *, dies=False, text=None):
        self._pool, self._dies, self._text, self._steps = pool, dies, text, 0

    async def reset(self, *args):
        observation = await self._pool.reset(*args)
        return observation if self._text is None else dataclasses.replace(observation, text=self._text)

    async def step(self, *args):
        self._steps += 1
        if self._dies and self._steps == 3:
            os.kill(self._pool.pids[0], signal.SIGKILL)
        return await self._pool.step(*args)

    async def release(self, name):
        await self._pool.release(name)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(pool):
    yield
    assert sum(lane.load for lane in pool._lanes) == 0


def play(pool, tasks, count, *, seed=0, max_steps=30, concurrency=4):
    return asyncio.run(
        expert_episodes(
            pool, tasks, count, HouseholdDemonstrator, seed=seed, max_steps=max_steps, concurrency=concurrency
        )
    )


@pytest.fixture(scope="module")
def episodes(pool, household_games):
    return play(pool, household_games, 24)


def test_every_game_is_solved_and_every_act_is_trained_on(episodes):
    assert len(episodes) == 24
    for messages in episodes:
        assert [role for role, _, _ in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert [trained for _, _, trained in messages] == [False, True] * (len(messages) // 2)
        acts = [parse_act(text) for _, text, trained in messages[:-2] if trained]
        assert all(act.action and not act.flags for act in acts)
        assert f"success in {len(acts)} steps" in messages[-2][1]


def test_the_review_names_the_family_the_skills_and_calls_a_tool(episodes, household_games):
    hinted = 0
    for number, messages in enumerate(episodes):
        review = parse_review(messages[-1][1])
        assert review.call.name in TOOLS
        assert set(review.call.arguments) == set(TOOLS[review.call.name])
        assert not review.flags
        assert f"family {household_games[number % 6].family} ." in messages[-2][1]
        skills = messages[0][1].count("skill ")
        titles = messages[-2][1].partition("skills ")[2].partition(" .")[0]
        assert titles.count(" at ") == skills
        assert skills or titles == "none"
        hinted += skills > 0
    assert 4 < hinted < 20


def test_episodes_are_a_function_of_the_seed_whatever_runs_beside(pool, household_games, episodes):
    assert play(pool, household_games, 24, concurrency=1) == episodes
    assert play(pool, household_games, 6) == episodes[:6]
    assert play(pool, household_games, 6, seed=1) != episodes[:6]


def test_episodes_that_fail_are_left_out(pool, household_games, episodes):
    steps = [len(messages) // 2 - 1 for messages in episodes]
    limit = sorted(steps)[12]
    assert play(pool, household_games, 24, max_steps=limit) == [m for m in episodes if len(m) // 2 - 1 <= limit]


def test_without_tasks_or_solutions_there_is_no_cold_start(pool, household_games):
    with pytest.raises(DataError, match="sft_episodes=0"):
        play(pool, [], 2)
    with pytest.raises(DataError, match="none of 3 episodes within max_steps=2"):
        play(pool, household_games, 3, max_steps=2)


def test_failures_of_the_environment_are_raised_and_leave_nothing_behind(pool, household_games):
    broken = dataclasses.replace(household_games[0], payload={**household_games[0].payload, "game": "nowhere"})
    with pytest.raises(DataError, match="nowhere"):
        play(pool, [broken], 1)

    with pytest.raises(EnvError, match="worker"):
        play(FaultyPool(pool, dies=True), household_games, 1)
    with pytest.raises(DataError, match="none of the six"):
        play(FaultyPool(pool, text="You are in a room. Your task is to: sing."), household_games, 1)
    assert len(play(pool, household_games, 1)) == 1
