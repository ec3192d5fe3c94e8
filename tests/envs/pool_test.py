import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from sage_jax.envs.alfworld import AlfworldFactory
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import ConfigError, DataError, EnvError
from sage_jax.types import Task

TOY = """
import os, pathlib, sys, time
from sage_jax.envs.base import Observation, StepResult
from sage_jax.errors import DataError, EnvError

class ToyEnv:
    made = 0

    def __init__(self):
        type(self).made += 1
        self.number = type(self).made

    def reset(self, task, seed, *, expert=False):
        self.steps, self.task = 0, task
        if task.payload.get("broken"):
            raise DataError("toy.json is missing")
        return Observation(task.id, info={"pid": os.getpid(), "number": self.number, "seed": seed})

    def step(self, action):
        self.steps += 1
        verb, _, rest = action.partition(" ")
        if verb == "sleep":
            time.sleep(float(rest))
        if verb == "die":
            os._exit(7)
        if verb == "fail":
            raise EnvError("the toy fell apart")
        if verb == "bug":
            raise ZeroDivisionError("oops")
        modules = sorted({name.partition(".")[0] for name in sys.modules})
        info = {"pid": os.getpid(), "steps": self.steps, "modules": modules}
        return StepResult(action, (), 0.0, False, False, info)

    def close(self):
        if "closes" in self.task.payload:
            pathlib.Path(self.task.payload["closes"]).touch()
        if self.task.payload.get("stubborn"):
            raise EnvError("the toy does not close")
"""


def toy_task(name: str = "toy", **payload) -> Task:
    return Task(name, "toy", "train", "toy", payload)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A factory that the workers can import."""
    (tmp_path / "toy_envs.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    import toy_envs

    yield toy_envs.ToyEnv
    del sys.modules["toy_envs"]


def run(coroutine):
    return asyncio.run(coroutine)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie that its new parent has not fetched yet."""
    try:
        return "(zombie)" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def expert_episode(pool: EnvPool, env_id, task: Task) -> list[str]:
    observation = await pool.reset(env_id, task, 1, expert=True)
    texts = [observation.text]
    while (action := observation.info["expert_action"]) is not None and len(texts) < 60:
        observation = await pool.step(env_id, action)
        texts.append(observation.text)
    await pool.release(env_id)
    assert observation.won
    return texts


def test_many_episodes_at_once_read_what_each_reads_alone(tasks):
    async def play():
        with EnvPool(AlfworldFactory(), workers=2) as pool:
            together = await asyncio.gather(*(expert_episode(pool, i, tasks[i % 4]) for i in range(32)))
            alone = [await expert_episode(pool, "alone", task) for task in tasks[:4]]
            assert len(pool.pids) == 2
            assert pool.restarts == 0
        return together, alone

    together, alone = run(play())
    assert together == [alone[i % 4] for i in range(32)]


def test_interleaved_episodes_of_one_game_do_not_win_for_each_other(family_tasks):
    task = family_tasks["pick_and_place_simple"]

    async def play():
        with EnvPool(AlfworldFactory(), workers=1) as pool:
            winner = await pool.reset("winner", task, 0, expert=True)
            idler = await pool.reset("idler", task, 0)
            while not getattr(winner, "done", False):
                winner = await pool.step("winner", winner.info["expert_action"])
                result = await pool.step("idler", "inventory")
                assert not result.won
                assert result.admissible == idler.admissible
            assert winner.won
            assert not (await pool.step("idler", "look")).won

    run(play())


def test_workers_import_no_jax_and_not_the_main_module(family_tasks, toy):
    async def modules() -> list[str]:
        with EnvPool(toy, workers=1) as pool:
            await pool.reset(0, toy_task(), 0)
            return (await pool.step(0, "look")).info["modules"]

    assert not {"jax", "flax", "torch", "pytest"} & set(run(modules()))


def test_the_alfworld_engine_imports_no_jax():
    code = (
        "import sys, sage_jax.envs.alfworld, sage_jax.envs.pool; print('jax' in sys.modules or 'torch' in sys.modules)"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_call_past_its_deadline_costs_its_worker_and_no_other(toy):
    async def play():
        with EnvPool(toy, workers=2, timeout_s=1.0) as pool:
            names = iter(f"task{i}" for i in range(100))
            pid_of, env_ids = {}, []
            while len(set(pid_of.values())) < 2 or len(env_ids) < 6:
                env_id = next(names)
                pid_of[env_id] = (await pool.reset(env_id, toy_task(env_id), 0)).info["pid"]
                env_ids.append(env_id)
            slow = env_ids[0]
            neighbours = [e for e in env_ids[1:] if pid_of[e] == pid_of[slow]]
            others = [e for e in env_ids if pid_of[e] != pid_of[slow]]
            with pytest.raises(EnvError, match="longer than 1 s"):
                await pool.step(slow, "sleep 60")
            for env_id in neighbours:
                with pytest.raises(EnvError, match="lost"):
                    await pool.step(env_id, "look")
            for env_id in others:
                assert (await pool.step(env_id, "look")).info["steps"] == 1
            again = await pool.reset(slow, toy_task(slow), 0)
            assert again.info["pid"] != pid_of[slow]
            assert (await pool.step(slow, "look")).info["steps"] == 1
            assert pool.restarts == 1

    run(play())


def test_a_dead_worker_is_replaced(toy):
    async def play():
        with EnvPool(toy, workers=1) as pool:
            await pool.reset(0, toy_task(), 0)
            await pool.reset(1, toy_task(), 0)
            with pytest.raises(EnvError, match=r"died during step \(exit code 7\)"):
                await pool.step(0, "die")
            with pytest.raises(EnvError, match="lost"):
                await pool.step(1, "look")
            with pytest.raises(EnvError, match="call reset"):
                await pool.step(1, "look")
            await pool.reset(1, toy_task(), 0)
            os.kill(pool.pids[0], signal.SIGKILL)
            time.sleep(0.2)
            await pool.reset(0, toy_task(), 0)  # a worker that died while idle is replaced without a word
            assert (await pool.step(0, "look")).info["steps"] == 1
            with pytest.raises(EnvError, match="lost"):
                await pool.step(1, "look")
            assert pool.restarts == 2

    run(play())


def test_errors_keep_their_type_and_cost_one_episode(toy):
    async def play():
        with EnvPool(toy, workers=1) as pool:
            with pytest.raises(DataError, match=r"toy\.json is missing"):
                await pool.reset(0, toy_task(broken=True), 0)
            await pool.reset(0, toy_task(), 0)
            await pool.reset(1, toy_task(), 0)
            await pool.reset(2, toy_task(), 0)
            with pytest.raises(EnvError, match="^the toy fell apart$"):
                await pool.step(0, "fail")
            with pytest.raises(EnvError, match=r"(?s)ZeroDivisionError: oops.*Traceback"):
                await pool.step(1, "bug")
            assert (await pool.step(2, "look")).info["steps"] == 1
            assert pool.restarts == 0

    run(play())


def test_released_environments_are_used_again(toy):
    async def play():
        with EnvPool(toy, workers=1) as pool:
            numbers = set()
            for seed in range(5):
                observation = await pool.reset("only", toy_task(), seed)
                assert observation.info["seed"] == seed
                numbers.add(observation.info["number"])
                await pool.release("only")
                await pool.release("only")
            assert numbers == {1}

    run(play())


def test_one_game_goes_to_one_worker_until_that_is_too_busy(toy):
    async def play():
        with EnvPool(toy, workers=2) as pool:
            pids = [(await pool.reset(i, toy_task("same"), 0)).info["pid"] for i in range(20)]
            return pids

    pids = run(play())
    assert len(set(pids[:8])) == 1
    assert len(set(pids)) == 2
    assert abs(pids.count(pids[0]) - pids.count(next(p for p in pids if p != pids[0]))) <= 8


def test_a_cancelled_reset_leaves_nothing_behind(toy):
    async def play():
        with EnvPool(toy, workers=1) as pool:
            await pool.reset(0, toy_task(), 0)
            sleeping = asyncio.create_task(pool.step(0, "sleep 0.5"))
            await asyncio.sleep(0.1)
            waiting = asyncio.create_task(pool.reset(1, toy_task(), 0))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await sleeping
            with pytest.raises(EnvError, match="no running episode"):
                await pool.step(1, "look")
            assert (await pool.reset(2, toy_task(), 0)).info["number"] == 2

    run(play())


def test_the_pool_works_from_one_event_loop_after_another(toy):
    with EnvPool(toy, workers=1) as pool:
        run(pool.reset(0, toy_task(), 0))
        assert run(pool.step(0, "look")).info["steps"] == 1


def test_closing_ends_every_worker(toy):
    async def start(pool):
        await asyncio.gather(*(pool.reset(i, toy_task(str(i)), 0) for i in range(12)))
        return pool.pids

    pool = EnvPool(toy, workers=2)
    pids = run(start(pool))
    assert len(pids) == 2
    pool.close()
    pool.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    with pytest.raises(EnvError, match="closed"):
        run(pool.reset(0, toy_task(), 0))
    with pytest.raises(EnvError, match="closed"):
        run(pool.step(0, "look"))


def test_closing_closes_every_environment(toy, tmp_path):
    """Running ones and released ones, and though one of them refuses."""

    async def play(pool):
        for number in range(4):
            task = toy_task(str(number), closes=str(tmp_path / f"{number}.closed"), stubborn=number == 2)
            await pool.reset(number, task, 0)
        await pool.release(1)

    with EnvPool(toy, workers=1) as pool:
        run(play(pool))
    assert len(list(tmp_path.glob("*.closed"))) == 4


@pytest.mark.parametrize("action", ["look", "sleep 600"])
def test_no_worker_outlives_a_killed_parent(toy, tmp_path, action):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, toy_envs
            from sage_jax.envs.pool import EnvPool
            from sage_jax.types import Task

            async def main():
                pool = EnvPool(toy_envs.ToyEnv, workers=1)
                await pool.reset(0, Task("t", "toy", "train", "toy"), 0)
                print(pool.pids[0], flush=True)
                await pool.step(0, {action!r})
                await asyncio.sleep(600)

            asyncio.run(main())
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert os.path.exists(f"/proc/{worker}")
        parent.kill()
    deadline = time.monotonic() + 20
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(worker)


def test_a_factory_that_fails_is_reported(toy):
    async def play():
        with EnvPool(os.getpid, workers=1) as pool, pytest.raises(EnvError, match="AttributeError"):
            await pool.reset(0, toy_task(), 0)  # the factory made an int, which is no environment

    run(play())


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"timeout_s": 0.0}])
def test_wrong_settings_are_named(toy, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EnvPool(toy, **wrong)
