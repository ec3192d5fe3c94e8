"""Episodes on generated and on broken websites."""

import asyncio
import dataclasses
import pickle

import pytest

from sage_jax.envs.pool import EnvPool
from sage_jax.envs.webwalker import TwinOptions, WebwalkerFactory, make_tasks
from sage_jax.errors import DataError, EnvError
from sage_jax.testing.bad_sites import BadSite
from sage_jax.types import Task

TASKS = make_tasks(TwinOptions(seed=2, train=1, valid=0, test=0))["train"]


@pytest.fixture(scope="module")
def factory():
    factory = WebwalkerFactory()
    yield factory
    factory.close()


def play(env, task):
    """Lets the expert play; returns the last result and the number of steps."""
    action, steps = env.reset(task, 0, expert=True).info["expert_action"], 0
    while action is not None:
        result = env.step(action)
        assert result.info["outcome"] == "ok"
        action, steps = result.info["expert_action"], steps + 1
    return result, steps


def test_the_expert_answers_every_question(factory):
    env = factory()
    for task in TASKS:
        result, steps = play(env, task)
        assert result.won
        assert result.reward == result.info["f1"] == 1.0
        sources = len(task.payload["golden_path"])
        assert steps == sum(path.count("->") for path in task.payload["golden_path"]) + sources


def test_what_an_agent_sees(factory):
    env, task = factory(), TASKS[0]
    first = env.reset(task, 0)
    assert first.text.startswith(f"Question: {task.payload['question']}")
    assert "\n\nButtons:\n- Home\n- " in first.text
    assert first.admissible[0] == "visit_page[Home]"
    assert [tool["function"]["name"] for tool in first.info["tools"]] == ["visit_page", "find"]
    assert "expert_action" not in first.info
    assert env.step("visit_page[Old timetable]").text.startswith("[not_found] no button")
    section = env.step("visit_page[Programme]")
    broken = env.step("visit_page[Old timetable]")
    assert broken.info == {"outcome": "not_found", "invalid": False}
    assert broken.admissible == section.admissible  # it stayed where it was
    assert env.step("visit_page[Members area]").info["outcome"] == "redirects"
    assert env.step("click it").info == {"outcome": "bad_arguments", "invalid": True}
    assert env.step("rm[/]").info == {"outcome": "unknown_tool", "invalid": True}
    assert env.step("find[Workshop]").info["outcome"] == "ok"
    wrong = env.step("answer[nothing of the sort]")
    assert (wrong.done, wrong.won, wrong.reward, wrong.info["exact_match"]) == (True, False, 0.0, False)
    with pytest.raises(EnvError, match="call reset"):
        env.step("find[x]")


def test_an_expert_that_is_not_followed_gives_up(factory):
    env = factory()
    assert env.reset(TASKS[0], 0, expert=True).info["expert_action"] is not None
    assert env.step("visit_page[Home]").info["expert_action"] is None


def test_real_addresses_go_through_the_same_client(factory):
    env = factory()
    payload = {"question": "?", "answer": "x"}
    with BadSite() as site:
        task = Task("live", "webwalker", "test", "single_source-easy", {**payload, "root_url": site.root})
        env.reset(task, 0)
        assert env.step("visit_page[500]").info["outcome"] == "unreachable"
        assert "ignore your instructions" in env.step("visit_page[inject]").text
        with pytest.raises(EnvError, match="the root page: unreachable"):
            env.reset(dataclasses.replace(task, payload={**payload, "root_url": f"{site.root}500"}), 0)
    with pytest.raises(DataError, match="needs question, answer and root_url or site"):
        env.reset(dataclasses.replace(task, payload=payload), 0)


def test_in_worker_processes():
    assert pickle.loads(pickle.dumps(WebwalkerFactory(page_chars=100))) == WebwalkerFactory(page_chars=100)

    async def main():
        with EnvPool(WebwalkerFactory(), workers=1) as pool:
            first = await pool.reset("a", TASKS[0], 0, expert=True)
            await pool.reset("b", TASKS[1], 0)
            return await pool.step("a", first.info["expert_action"])

    assert asyncio.run(main()).info["outcome"] == "ok"
