"""Rounds that are played while the learner works: who waits for whom, and what a run with them repeats."""

import asyncio
import dataclasses
import shutil
import threading
import time

import pytest

from sage_jax.config import to_dataclass
from sage_jax.envs.pool import EnvPool
from sage_jax.metrics import read_jsonl, read_metrics
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.settings import RunSettings
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training import loop
from sage_jax.training.ahead import Ahead, span_metrics
from sage_jax.types import RewardResult, Task, Trajectory, Turn, VersionSpan
from tests.e2e.kill_test import assert_same


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


def test_a_round_is_played_while_the_caller_goes_on(runner):
    done = threading.Event()

    async def episode():
        while not done.is_set():
            await asyncio.sleep(0.001)
        return threading.current_thread().name

    with Ahead(runner) as ahead:
        assert ahead.behind is None
        ahead.start(lambda: runner.run(episode()), "weights")
        assert ahead.behind == "weights"
        done.set()  # the learner's work: had `start` waited for the round, this were never reached
        name, behind = ahead.take()
        assert (name.startswith("ahead"), behind, ahead.behind) == (True, "weights", None)
    assert runner.run(asyncio.sleep(0, "free again")) == "free again"


def test_what_a_round_raises_reaches_the_learner(runner):
    async def episode():
        raise ValueError("no servers")

    with Ahead(runner) as ahead:
        ahead.start(lambda: runner.run(episode()), "weights")
        with pytest.raises(ValueError, match="no servers"):
            ahead.take()


@pytest.mark.timeout(120)
def test_a_learner_that_fails_ends_the_round_in_play(runner):
    playing, seen = threading.Event(), []

    async def episode():
        playing.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    def learn():
        with Ahead(runner) as ahead:
            ahead.start(lambda: runner.run(episode()), "weights")
            playing.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        learn()
    assert seen == ["cancelled"]


def test_the_first_round_and_those_after_an_evaluation_are_not_played_ahead():
    def rounds(**values):
        settings = to_dataclass({"rounds": 6, **values}, RunSettings)
        return [number for number in range(7) if loop.plays_ahead(settings, number)]

    assert rounds(ahead=True, eval_every=0) == [1, 2, 3, 4, 5]
    assert rounds(ahead=True, eval_every=3) == [1, 2, 4, 5]
    assert rounds(ahead=False) == []


def test_turns_that_span_an_update_are_counted():
    def played(*starts):
        spans = [tuple(VersionSpan(version, start, start + 3) for version, start in enumerate(one)) for one in starts]
        turns = tuple(Turn("act", (1,), (2,), (0.0,), True, weight_versions=one) for one in spans)
        return Trajectory(Task("t", "alfworld", "train", "f"), "g", 0, turns, RewardResult(0.0))

    counted = span_metrics([played((0,), (0, 3)), played(()), played((0, 2, 7))])
    assert counted == {"rollout/spanning_turns": 2.0, "rollout/spanning_tokens": 3.0 + 7.0}


def let_turns_run_at_each_push(monkeypatch):
    """Holds rounds ahead between two turns until the learner pushes; the push waits until turns run again.

    Returns the versions that were pushed while turns ran.
    """
    learned, pushing, pushed = threading.Event(), threading.Event(), []
    step, update, decode = EnvPool.step, EmbeddedEngine.update_weights, EmbeddedEngine._decode

    async def held(self, name, action):
        if name.startswith(("1/", "2/")):
            await asyncio.to_thread(learned.wait, 60)
        return await step(self, name, action)

    def push(self, params, version, *, running="refuse"):
        if running != "refuse":
            before = self.stats()["generated_tokens"]
            pushing.set()
            learned.set()
            while self.stats()["generated_tokens"] == before:
                time.sleep(0.0005)
            pushed.append(version)
        update(self, params, version, running=running)
        pushing.clear()
        if running == "refuse":
            learned.clear()

    def slow(self, *arguments):
        decode(self, *arguments)
        if pushing.is_set():
            time.sleep(0.05)  # the update arrives before the next dispatch

    monkeypatch.setattr(EnvPool, "step", held)
    monkeypatch.setattr(EmbeddedEngine, "update_weights", push)
    monkeypatch.setattr(EmbeddedEngine, "_decode", slow)
    return pushed


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("what", ["correct", "drop"])
def test_weights_may_come_in_mid_turn(what, tiny_folder, tiny_cache, tmp_path, monkeypatch):
    pushed = let_turns_run_at_each_push(monkeypatch)
    values = {
        "ahead": True,
        "rounds": 3,
        "importance_cap": 5.0,
        "running_turns": what,
        "method": "grpo",
        "act_tokens": 48,
        "choices": False,
    }
    folder = loop.train(tiny_settings(tmp_path / "run", tiny_folder, tiny_cache, **values))
    lines = [line for line in read_metrics(folder) if "rollout/lag" in line]
    assert [line["rollout/lag"] for line in lines] == [0, 1, 1]
    assert len(pushed) == len(set(pushed)) == 2  # in rounds 2 and 3; nothing is played behind the last
    assert lines[0]["rollout/spanning_turns"] == 0
    if what == "correct":
        assert all(line["rollout/spanning_turns"] > 0 for line in lines[1:])
        assert all(line["rollout/spanning_tokens"] > 0 for line in lines[1:])
        assert not any("status/aborted" in line for line in lines)
        # Ratios are against the learner's own weights; what stands between those and the engine's is the importance.
        assert all(line["loss/ratio_max"] == 1.0 for line in lines)
        assert all(line["loss/engine_gap_max"] > 1e-4 for line in lines[1:])
        assert all(line["loss/importance_weight"] != 1.0 for line in lines[1:])
        records = read_jsonl(folder / "rounds" / "0002.jsonl")
        spans = [turn["weight_versions"] for record in records for turn in record["turns"]]
        assert {len(one) for one in spans} == {1, 2}
        versions = {version for one in spans for version, _, _ in one}
        assert versions == {2, pushed[0]}
    else:
        assert all(line["rollout/spanning_turns"] == 0 for line in lines)
        assert all(line["status/aborted"] > 0 for line in lines[1:])
        records = read_jsonl(folder / "rounds" / "0002.jsonl")
        lost = [record for record in records if record["reward"]["status"] == "aborted"]
        assert len(records) == 6
        assert lost
        assert all(turn["advantage"] is None for record in lost for turn in record["turns"])
        assert all(record["reward"]["value"] is None for record in lost)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_ahead_learns_from_older_weights_and_continues_to_the_same_end(tiny_folder, tiny_cache, tmp_path):
    settings = tiny_settings(tmp_path / "run", tiny_folder, tiny_cache, ahead=True, rounds=3)
    folder = loop.train(settings)
    lines = [line for line in read_metrics(folder) if "rollout/lag" in line]
    assert [line["rollout/lag"] for line in lines] == [0, 1, 1]
    # Strictly on-policy the first round, and only that: the others were played with weights before an update.
    assert lines[0]["loss/ratio_max"] == 1.0
    assert all(abs(line["loss/ratio_max"] - 1) > 1e-4 for line in lines[1:])
    # The old log-probabilities are those of the weights that the engine had.
    assert all(line["loss/engine_gap_max"] < 1e-4 for line in lines)
    again = dataclasses.replace(settings, run_dir=str(tmp_path / "again"))
    shutil.copytree(folder, again.run_dir)
    (tmp_path / "again/checkpoints/manifests/3.json").unlink()  # as if killed in round 3, with it in play
    assert_same(loop.train(again), folder)
