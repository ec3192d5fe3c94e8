"""Environment workers as actors of a Ray cluster of two nodes, on this machine. Skipped without `sage_jax[ray]`."""

import asyncio
import sys

import pytest

from sage_jax.envs.pool import EnvPool
from sage_jax.errors import ConfigError, DataError, EnvError
from sage_jax.types import Task

pytestmark = pytest.mark.timeout(600)
TOY = """
import pathlib, time
from sage_jax.envs.base import Observation, StepResult
from sage_jax.errors import DataError

class ToyEnv:
    def reset(self, task, seed, *, expert=False):
        import ray
        if task.payload.get("broken"):
            raise DataError("toy.json is missing")
        self.steps, self.task = 0, task
        return Observation(task.id, info={"node": ray.get_runtime_context().get_node_id()})

    def step(self, action):
        self.steps += 1
        if action == "sleep":
            time.sleep(60)
        return StepResult(action, (), 0.0, False, False, {"steps": self.steps})

    def close(self):
        if hasattr(self, "task") and "closes" in self.task.payload:
            pathlib.Path(self.task.payload["closes"]).touch()
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A factory that the actors can import."""
    (tmp_path / "ray_toy_envs.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    import ray_toy_envs

    yield ray_toy_envs.ToyEnv
    del sys.modules["ray_toy_envs"]


def toy_task(number=0, **payload) -> Task:
    return Task(str(number), "toy", "train", str(number), payload)


def test_without_ray_its_name_and_the_extra_are_told(toy, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"env_backend='ray' needs Ray: pip install 'sage_jax\[ray\]'"):
        EnvPool(toy, backend="ray")


@pytest.mark.slow
def test_episodes_are_spread_over_both_nodes_and_their_environments_closed(ray_cluster, toy, tmp_path):
    async def play(pool):
        tasks = [toy_task(number, closes=str(tmp_path / f"{number}.closed")) for number in range(8)]
        started = await asyncio.gather(*(pool.reset(i, task, 0) for i, task in enumerate(tasks)))
        steps = await asyncio.gather(*(pool.step(i, "look") for i in range(8)))
        assert [one.info["steps"] for one in steps] == [1] * 8
        return {one.info["node"] for one in started}

    with EnvPool(toy, workers=4, backend="ray") as pool:
        assert len(asyncio.run(play(pool))) == 2
    assert len(list(tmp_path.glob("*.closed"))) == 8


@pytest.mark.slow
def test_errors_keep_their_type_and_a_late_call_costs_its_worker_alone(ray_cluster, toy):
    async def play(pool):
        with pytest.raises(DataError, match="toy.json is missing"):
            await pool.reset("broken", toy_task(0, broken=True), 0)
        await asyncio.gather(*(pool.reset(i, toy_task(i), 0) for i in range(8)))
        with pytest.raises(EnvError, match="longer than 2 s"):
            await pool.step(0, "sleep")
        results = await asyncio.gather(*(pool.step(i, "look") for i in range(1, 8)), return_exceptions=True)
        lost = [one for one in results if isinstance(one, EnvError)]
        assert len(results) - len(lost) > 0
        assert all("lost with its worker" in str(one) for one in lost)
        await pool.reset(0, toy_task(0), 0)
        assert (await pool.step(0, "look")).info["steps"] == 1

    with EnvPool(toy, workers=2, timeout_s=2.0, backend="ray") as pool:
        asyncio.run(play(pool))


@pytest.mark.slow
def test_a_lost_node_costs_its_episodes_and_the_others_go_on(ray_cluster, toy):
    node = ray_cluster.add_node(num_cpus=4)

    async def play(pool):
        started = await asyncio.gather(*(pool.reset(i, toy_task(i), 0) for i in range(12)))
        gone = [i for i, one in enumerate(started) if one.info["node"] == node.node_id]
        assert 0 < len(gone) < 12
        ray_cluster.remove_node(node)
        results = await asyncio.gather(*(pool.step(i, "look") for i in range(12)), return_exceptions=True)
        assert [i for i, one in enumerate(results) if isinstance(one, EnvError)] == gone
        again = await asyncio.gather(*(pool.reset(i, toy_task(i), 0) for i in gone))
        assert node.node_id not in {one.info["node"] for one in again}

    with EnvPool(toy, workers=4, backend="ray", timeout_s=120.0) as pool:
        asyncio.run(play(pool))
