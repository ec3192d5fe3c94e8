"""The real engine. Skipped where third_party/appworld/install.sh has not been run."""

import asyncio
import os
import pathlib
import tempfile

import psutil
import pytest

from sage_jax.envs.appworld import AppworldFactory, default_home, load_tasks
from sage_jax.envs.appworld.env import AppworldEnv
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import DataError, EnvError
from sage_jax.skills.programs import TRACE_QUERY, Program, load_programs, traced_uses
from sage_jax.types import Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
TIMEOUT_S = 300.0  # a busy machine takes minutes to start two engines


@pytest.fixture(scope="module")
def tasks() -> dict[str, tuple[Task, ...]]:
    try:
        return load_tasks(default_home().twin)
    except DataError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def env(tasks):
    env = AppworldFactory(timeout_s=TIMEOUT_S)()
    yield env
    env.close()


def solve(env: AppworldEnv, task: Task):
    action = env.reset(task, 0, expert=True).info["expert_action"]
    while action is not None:
        result = env.step(action)
        action = result.info["expert_action"]
    return result


def test_the_expert_solves_every_task(env, tasks):
    failed = []
    for task in (task for split in tasks.values() for task in split):
        result = solve(env, task)
        if not result.won or result.info["passed"] != result.info["total"]:
            failed.append((task.family, task.payload["instruction"], result.text, result.info))
    assert failed == []


def test_functions_are_loaded_before_and_counted_after_an_episode(env, tasks):
    """SAGE's loading and credit by trace, in the engine's own shell; a task that is completed is not judged anew."""
    env.reset(tasks["train"][0], 0)
    programs = [
        Program("three", "def three(x=2):\n    return x + 1"),
        Program("broken", "def broken(x=missing):\n    pass"),
    ]

    async def run(code: str) -> tuple[bool, str]:
        return env.run(code)

    loading = asyncio.run(load_programs(programs, run, credit="trace"))
    assert [program.name for program in loading.loaded] == ["three"]
    assert "NameError" in loading.failed["broken"]
    last = env.step("apis.supervisor.complete_task(answer=three())")
    assert last.done
    ran, said = env.run(TRACE_QUERY)
    assert ran
    assert traced_uses(said, ["three"]) == {"three"}
    with pytest.raises(EnvError, match="reset"):
        env.step("1")


def test_a_shell_with_names_and_failures(env, tasks):
    observation = env.reset(tasks["train"][0], 0)
    assert observation.info["task"] in observation.text
    assert env.step("x = 20").text == "Execution successful."
    assert env.step("print(x + 1)").text.strip() == "21"
    failed = env.step("1/0")
    assert failed.info["failed"]
    assert "ZeroDivisionError" in failed.text
    lost = env.step("apis.supervisor.complete_task(answer='wrong')")
    assert (lost.done, lost.won, lost.reward) == (True, False, 0.0)
    assert lost.info["passed"] < lost.info["total"]
    with pytest.raises(EnvError, match="reset"):
        env.step("1")


def test_doing_too_much_is_seen(env, tasks):
    task = next(task for task in tasks["train"] if task.family == "note_pin")
    action = env.reset(task, 0, expert=True).info["expert_action"]
    extra = 'apis.simple_note.create_note(title="extra", content="x", access_token=open_app("simple_note"))'
    action = env.step(f"{action}\n{extra}").info["expert_action"]
    result = env.step(action)
    assert not result.won
    assert result.info["passed"] == result.info["total"] - 1


def test_no_ground_truth_is_in_the_agents_reach(env, tasks):
    env.reset(tasks["train"][0], 0)
    folder = env._server.folder
    assert [path for path in folder.rglob("*") if "ground_truth" in path.name] == []
    # Whatever gets past the engine's own guard is still in the sandbox, where the data root is not.
    root = tasks["train"][0].payload["root"]
    escape = (
        "walk = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]\n"
        f"print(walk.__init__.__globals__['listdir']({root!r} + '/data/tasks'))"
    )
    text = env.step(escape).text
    assert tasks["train"][1].id not in text


def test_partial_credit_after_every_step(tasks):
    env = AppworldFactory(timeout_s=TIMEOUT_S, evaluate="always")()
    task = next(task for task in tasks["train"] if task.family == "note_pin")
    action = env.reset(task, 0, expert=True).info["expert_action"]
    before = env.step("x = 1").info
    env.reset(task, 0)
    after = env.step(action).info
    env.close()
    assert before["total"] == after["total"]
    assert before["passed"] < after["passed"] < after["total"]  # all but the completion


def test_a_killed_server_costs_its_own_episode_only(tasks):
    factory = AppworldFactory(timeout_s=TIMEOUT_S)
    first, second = factory(), factory()
    first.reset(tasks["train"][0], 0)
    second.reset(tasks["train"][3], 0)
    psutil.Process(first._server.pid).kill()
    with pytest.raises(EnvError):
        first.step("x = 1")
    assert second.step("print(2)").text.strip() == "2"
    assert solve(first, tasks["train"][0]).won
    first.close()
    second.close()


def test_more_servers_than_allowed_are_refused(tasks):
    factory = AppworldFactory(timeout_s=TIMEOUT_S, servers=1)
    first, second = factory(), factory()
    first.reset(tasks["train"][0], 0)
    with pytest.raises(EnvError, match="servers=1"):
        second.reset(tasks["train"][0], 0)
    first.close()
    second.reset(tasks["train"][0], 0)
    second.close()


def test_200_episodes_leave_no_server_and_no_folder(tasks):
    """In worker processes, two at once, each server replaced several times."""
    before = left_over()
    factory = AppworldFactory(timeout_s=TIMEOUT_S, recycle_episodes=20)
    played = [tasks["train"][i % len(tasks["train"])] for i in range(200)]

    async def lane(pool: EnvPool, name: int) -> int:
        won = 0
        for number, task in enumerate(played[name::2]):
            action = (await pool.reset((name, number), task, number, expert=True)).info["expert_action"]
            while action is not None:
                result = await pool.step((name, number), action)
                action = result.info["expert_action"]
            won += result.won
            await pool.release((name, number))
        return won

    async def play() -> int:
        with EnvPool(factory, workers=2, timeout_s=300.0) as pool:
            return sum(await asyncio.gather(lane(pool, 0), lane(pool, 1)))

    assert asyncio.run(play()) == 200
    assert left_over() == before


def left_over() -> tuple[set[str], set[int]]:
    """Returns the engine's folders and processes that are there now."""
    folders = {path.name for path in pathlib.Path(tempfile.gettempdir()).glob("sage-appworld-*")}
    processes = set()
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if ("appworld" in line and "serve" in line) or "engine/evaluate.py" in line:
            processes.add(process.pid)
    return folders, processes - {os.getpid()}
