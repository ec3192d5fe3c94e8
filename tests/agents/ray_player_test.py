"""Players as actors of a Ray cluster of two nodes, on this machine. Skipped without `sage_jax[ray]`."""

import asyncio
import contextlib
import functools
import json
import sys
import types

import pytest

from sage_jax.agents.plans import AgentOptions, EpisodePlan
from sage_jax.agents.ray_player import RayPlayer
from sage_jax.errors import ConfigError, EnvError
from sage_jax.rewards import ActShaping, OutcomeConfig
from sage_jax.skills import RetrievalConfig
from sage_jax.testing.server_process import ServerProcess
from sage_jax.testing.tiny import tiny_settings
from sage_jax.types import Status, Task

pytestmark = pytest.mark.timeout(900)
TOY = """
import asyncio, contextlib, os
from types import SimpleNamespace
from sage_jax.types import RewardResult, Status, Trajectory, Turn

class ToyPlayer:
    def __init__(self):
        self.engine = SimpleNamespace(adopt=lambda weights: setattr(self, "weights", weights))

    async def play(self, plan):
        import ray
        if "dies" in plan.task.payload:
            os._exit(1)
        await asyncio.sleep(plan.task.payload.get("sleeps", 0))
        info = {"node": ray.get_runtime_context().get_node_id(), "pid": os.getpid(), "weights": self.weights}
        turn = Turn("act", (1,), (2,), (-1.0,), True)
        return Trajectory(plan.task, plan.group, plan.seed, (turn,), RewardResult(1.0, Status.OK), info)

    async def review(self, plan, played):
        os._exit(1)

@contextlib.contextmanager
def open_toy(mark):
    yield ToyPlayer()
    with open(mark, "a") as stream:
        stream.write("closed ")

@contextlib.contextmanager
def open_broken():
    raise ValueError("the data are not on this machine")
    yield
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A module that the actors can import."""
    (tmp_path / "ray_toy_player.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    import ray_toy_player

    yield ray_toy_player
    del sys.modules["ray_toy_player"]


def ray_player(open_player, tokenizer, *, weights=None, workers=2) -> RayPlayer:
    return RayPlayer(
        types.SimpleNamespace(published=weights),
        None,
        tokenizer,
        AgentOptions(),
        encode=None,
        retrieval=RetrievalConfig(),
        shaping=ActShaping(),
        outcome=OutcomeConfig(),
        open_player=open_player,
        workers=workers,
        concurrency=8,
    )


def plan(number, **payload) -> EpisodePlan:
    return EpisodePlan(Task(str(number), "toy", "train", str(number), payload), "group", number)


def test_without_ray_its_setting_and_the_extra_are_told(word_tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"rollout_backend='ray' needs Ray: pip install 'sage_jax\[ray\]'"):
        ray_player(contextlib.nullcontext, word_tokenizer)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "engine='embedded'.*use engine='http'"),
        ({"engine": "http", "engine_urls": ("http://x",), "env_backend": "ray"}, "use env_backend='process'"),
    ],
)
def test_settings_that_actors_cannot_play_with_are_refused(tmp_path, values, message):
    with pytest.raises(ConfigError, match=message):
        tiny_settings(tmp_path / "run", tmp_path, tmp_path, rollout_backend="ray", **values)


@pytest.mark.slow
def test_plans_are_spread_over_the_machines_and_a_lost_actor_costs_its_episode(
    ray_cluster, toy, word_tokenizer, tmp_path
):
    mark = tmp_path / "closed"

    async def play(player):
        played = await player.play_all([plan(number) for number in range(8)], concurrency=8)
        assert [one.seed for one in played] == list(range(8))
        assert {one.info["weights"] for one in played} == {"version 3"}
        assert len({one.info["node"] for one in played}) == 2
        lost, other = await asyncio.gather(player.play(plan(0, dies=True)), player.play(plan(1)))
        assert (lost.reward.status, lost.reward.value) == (Status.ENV_ERROR, None)
        assert "rollout worker 0 was lost" in lost.info["error"]
        assert other.reward.value == 1.0
        unread = await player.review(plan(1), other)
        assert (unread.reward, unread.turns) == (other.reward, other.turns)
        assert unread.info["review_status"] == "env_error"
        again = await player.play_all([plan(number) for number in range(4)], concurrency=4)
        assert len({one.info["pid"] for one in again}) == 2  # another actor has taken its place
        mixed = [plan(number, **({"sleeps": 600} if number == 3 else {})) for number in range(8)]
        late = await player.play_all(mixed, concurrency=8, straggler_factor=5.0)
        assert [one.reward.status for one in late].count(Status.OK) == 7
        assert late[3].reward.status is Status.STRAGGLER

    open_toy = functools.partial(toy.open_toy, str(mark))
    with contextlib.closing(ray_player(open_toy, word_tokenizer, weights="version 3")) as player:
        asyncio.run(play(player))
    assert mark.read_text() == "closed closed "


@pytest.mark.slow
def test_an_actor_that_cannot_be_opened_tells_why(ray_cluster, toy, word_tokenizer):
    with pytest.raises(EnvError, match="an actor did not start: .*the data are not on this machine"):
        ray_player(toy.open_broken, word_tokenizer, workers=1)


@pytest.mark.slow
def test_a_run_is_the_same_with_actors(ray_cluster, tiny_folder, tiny_cache, tmp_path):
    """Cold start, rounds, probes and evaluations, played by actors on two nodes, against those played here."""
    from sage_jax.training.loop import train

    lines = {}
    for backend in ("local", "ray"):
        sizes = ("--slots", "16", "--max-length", "1024", "--port", "0")
        with ServerProcess("sage_jax.rollout.server", "--model", str(tiny_folder), *sizes) as server:
            where = {"engine": "http", "engine_urls": (server.url,), "rollout_backend": backend}
            folder = train(tiny_settings(tmp_path / backend, tiny_folder, tiny_cache, **where))
        found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines[backend] = [{key: line[key] for key in line if not key.startswith(("time", "engine"))} for line in found]
    for ray, local in zip(lines["ray"], lines["local"], strict=True):
        assert {key: (ray.get(key), local[key]) for key in local if ray.get(key) != local[key]} == {}
