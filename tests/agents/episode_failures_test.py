"""Episodes that something ends from outside, on the real ALFWorld engine: no reward, nothing lost, all given back."""

import asyncio
import dataclasses
import os
import re
import signal

import pytest

from sage_jax.agents.episode import EpisodePlan
from sage_jax.errors import ConfigError, DataError, EngineError
from sage_jax.metrics.writers import trajectory_record
from sage_jax.rollout.engine import ABORT, VersionSpan
from sage_jax.testing.engines import ScriptedEngine
from sage_jax.types import Status
from tests.agents.conftest import LOOK, World


def rewards(trajectory):
    return [turn.reward and turn.reward.value for turn in trajectory.turns]


def assert_no_reward(trajectory, status):
    assert (trajectory.reward.value, trajectory.reward.status) == (None, status)
    assert all(turn.reward.value is None and turn.reward.status is status for turn in trajectory.turns)


def test_a_dead_environment_gives_no_reward_and_the_next_episode_plays(pool, word_tokenizer, task):
    def script(request, turn):
        if turn == 2 and request.session.startswith("victim"):
            os.kill(pool.pids[0], signal.SIGKILL)
        return LOOK

    world = World(pool, word_tokenizer, script, max_steps=4)
    trajectory = world.play(EpisodePlan(task, "victim", 0, review=True))
    assert_no_reward(trajectory, Status.ENV_ERROR)
    assert re.search("worker died|lost with its worker", trajectory.info["error"])
    assert (len(trajectory.turns), trajectory.info["steps"]) == (3, 2)
    world = World(pool, word_tokenizer, script, max_steps=4)
    assert world.play(EpisodePlan(task, "heir", 0)).reward.status is Status.TRUNCATED


def test_a_failed_generation_costs_its_own_episode_only(pool, word_tokenizer, task):
    def script(request, turn):
        if turn == 1 and request.session.startswith("victim"):
            raise EngineError("out of luck")
        return LOOK

    world = World(pool, word_tokenizer, script, max_steps=3)
    victim, other = world.play(EpisodePlan(task, "victim", 0, review=True), EpisodePlan(task, "other", 0))
    assert_no_reward(victim, Status.ENGINE_ERROR)
    assert (len(victim.turns), victim.info["error"]) == (1, "out of luck")
    assert (other.reward.value, other.reward.status) == (0.0, Status.TRUNCATED)


class FaultyEngine(ScriptedEngine):
    """Aborts the second turn of every session and, if told so, cannot end sessions."""

    abort, lost, aborts = True, False, "/1"

    async def generate(self, request):
        answer = await super().generate(request)
        aborted = self.abort and request.request_id.endswith(self.aborts)
        return dataclasses.replace(answer, finish_reason=ABORT, ids=answer.ids[:2]) if aborted else answer

    async def end_session(self, session):
        await super().end_session(session)
        if self.lost:
            raise EngineError("the engine is gone")


def test_an_aborted_turn_is_no_turn(pool, word_tokenizer, task):
    world = World(pool, word_tokenizer, None, engine=FaultyEngine(word_tokenizer, [LOOK] * 9), max_steps=3)
    (trajectory,) = asyncio.run(world.player.play_all([EpisodePlan(task, "g", 0)], concurrency=1))
    world.assert_all_given_back(1)
    assert_no_reward(trajectory, Status.ABORTED)
    assert (len(trajectory.turns), trajectory.info["error"]) == (
        1,
        "g/0/1/1: the engine aborted the turn after 2 tokens",
    )


def test_an_engine_that_cannot_end_a_session_costs_no_result(pool, word_tokenizer, task):
    engine = FaultyEngine(word_tokenizer, [LOOK] * 9, version=3)
    engine.abort, engine.lost = False, True
    trajectory = World(pool, word_tokenizer, None, engine=engine, max_steps=2).play(EpisodePlan(task, "g", 0))
    assert (trajectory.reward.value, trajectory.reward.status) == (0.0, Status.TRUNCATED)
    assert trajectory.info["error"] == "the engine is gone"


def test_an_episode_that_takes_too_long_is_given_up(pool, word_tokenizer, task):
    async def stuck(request, turn):
        if turn == 1:
            await asyncio.Event().wait()
        return LOOK

    world = World(pool, word_tokenizer, stuck, episode_timeout_s=1.0)
    trajectory = world.play(EpisodePlan(task, "g", 0, review=True))
    assert_no_reward(trajectory, Status.TIMEOUT)
    assert "episode_timeout_s=1.0" in trajectory.info["error"]


@pytest.mark.parametrize("fault", ["timeout", "engine_error", "aborted"])
def test_a_lost_review_leaves_the_episode_its_outcome(pool, word_tokenizer, task, fault):
    lost = 2  # the turn, counted from 0; reviewed afterwards it is the session's first

    async def script(request, turn):
        if turn == lost and fault == "timeout":
            raise TimeoutError  # as its clock does
        if turn == lost and fault == "engine_error":
            raise EngineError("out of luck")
        return LOOK

    def world():
        engine = FaultyEngine(word_tokenizer, script, version=3)
        engine.aborts = "/2" if fault == "aborted" else "/none"
        return World(pool, word_tokenizer, None, engine=engine, max_steps=2)

    plain = world().play(EpisodePlan(task, "g", 0))
    at_once = world()
    (trajectory,) = asyncio.run(at_once.player.play_all([EpisodePlan(task, "g", 0, review=True)], concurrency=1))
    at_once.assert_all_given_back(1)
    lost = 0
    afterwards = world()
    reviewed = asyncio.run(afterwards.player.review(EpisodePlan(task, "g", 0), plain))
    assert "review_status" not in plain.info
    for found in (trajectory, reviewed):
        assert (found.turns, found.reward) == (plain.turns, plain.reward)
        assert rewards(found) == [0.0, 0.0]
        assert found.info["review_status"] == fault
        assert found.info["error"].startswith("review: ")


def test_an_episode_far_slower_than_the_others_is_dropped_and_given_back(pool, word_tokenizer, task):
    async def script(request, turn):
        if request.session.startswith("slow") and turn == 1:
            await asyncio.Event().wait()
        return LOOK

    world = World(pool, word_tokenizer, script, max_steps=2)
    every = [EpisodePlan(task, name, 0) for name in ("a", "slow", "b", "c")]
    played = asyncio.run(world.player.play_all(every, concurrency=4, straggler_factor=3.0))
    world.assert_all_given_back(4)
    assert [one.group for one in played] == ["a", "slow", "b", "c"]
    assert [one.reward.status for one in played] == [Status.TRUNCATED, Status.STRAGGLER] + [Status.TRUNCATED] * 2
    assert_no_reward(played[1], Status.STRAGGLER)
    assert len(played[1].turns) == 1
    assert re.match(r"longer than straggler_factor=3.0 times the median of .* s of the others", played[1].info["error"])


def test_a_turn_knows_which_weights_sampled_which_of_its_tokens(pool, word_tokenizer, task):
    class Updated(ScriptedEngine):
        async def generate(self, request):
            answer = await super().generate(request)
            return dataclasses.replace(answer, weight_versions=(VersionSpan(2, 0, 4), VersionSpan(3, 4, 9)))

    world = World(pool, word_tokenizer, None, engine=Updated(word_tokenizer, [LOOK] * 2, version=3), max_steps=2)
    trajectory = world.play(EpisodePlan(task, "g", 0))
    assert {turn.weight_versions for turn in trajectory.turns} == {(VersionSpan(2, 0, 4), VersionSpan(3, 4, 9))}
    record = trajectory_record(trajectory)
    assert record["turns"][0]["weight_versions"] == [[2, 0, 4], [3, 4, 9]]


def test_actions_that_cannot_be_told_apart_or_said_end_their_episode(pool, word_tokenizer, task):
    world = World(pool, word_tokenizer, [LOOK], choices=True, act_tokens=7)
    trajectory = world.play(EpisodePlan(task, "g", 0))
    assert_no_reward(trajectory, Status.ENGINE_ERROR)
    assert re.search(r"choices=True: '.*' takes \d+ tokens; raise act_tokens=7", trajectory.info["error"])
    with pytest.raises(ConfigError, match="act_tokens=3 with choices=True: an action takes at least"):
        World(pool, word_tokenizer, [LOOK], choices=True, act_tokens=3)
    episode = world.player.episode(EpisodePlan(task, "g", 0), "name")
    with pytest.raises(EngineError, match="'xyzzy' and 'plugh' are the same tokens"):
        episode._choice_ids(["xyzzy", "plugh"], 40)


def test_a_cancelled_or_refused_episode_gives_everything_back(pool, word_tokenizer, task):
    async def stuck(request, turn):
        started.set()
        await asyncio.Event().wait()

    async def cancel():
        playing = asyncio.ensure_future(world.player.play(EpisodePlan(task, "g", 0)))
        await started.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    started = asyncio.Event()
    world = World(pool, word_tokenizer, stuck)
    asyncio.run(cancel())
    world.assert_all_given_back(1)
    broken = dataclasses.replace(task, payload={**task.payload, "game": "nowhere/game.tw-pddl"})
    with pytest.raises(DataError, match="nowhere"):
        asyncio.run(world.player.play(EpisodePlan(broken, "g", 0)))
    world.assert_all_given_back(2)
