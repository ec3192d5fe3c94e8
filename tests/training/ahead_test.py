"""Rounds that are played while the learner works: who waits for whom, and what a run with them repeats."""

import asyncio
import dataclasses
import shutil
import threading

import pytest

from sage_jax.config import to_dataclass
from sage_jax.metrics import read_metrics
from sage_jax.settings import RunSettings
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training import loop
from sage_jax.training.ahead import Ahead
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
