"""Rollouts of a black-box task LLM on generated websites: what it is shown, what it may do, how rollouts end."""

import asyncio
import dataclasses
import json
import re

import pytest

from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.envs.base import StepResult
from sage_jax.envs.webwalker import TwinOptions, WebwalkerFactory, make_tasks
from sage_jax.errors import ConfigError, EnvError
from sage_jax.rollout.openai_llm import OpenAiLlm, OpenAiOptions
from sage_jax.rollout.task_llm import Budget, Reply
from sage_jax.seeding import derive_seed
from sage_jax.skills import SkillFile
from sage_jax.testing.bad_sites import BadSite
from sage_jax.testing.chat_server import ChatServer, fault
from sage_jax.testing.local_pool import LocalPool
from sage_jax.types import Status, Task

TASKS = make_tasks(TwinOptions(seed=2, train=1, valid=0, test=0))["train"]
SKILL = SkillFile("walk-sites", "For questions about sites", "Open the section first.")


class NotedPool(LocalPool):
    """Keeps the actions that were played."""

    def __init__(self, factory):
        super().__init__(factory)
        self.steps = []

    async def step(self, env_id, action) -> StepResult:
        self.steps.append(action)
        return await super().step(env_id, action)


@pytest.fixture(scope="module")
def factory():
    factory = WebwalkerFactory()
    yield factory
    factory.close()


def play(factory, script, task=TASKS[0], *, skill=None, budget=None, key="", count=1, retries=0, **options):
    """Returns the rollouts of a task under a scripted endpoint, and the server and pool."""
    pool = NotedPool(factory)
    with ChatServer(script, key=key) as server:
        llm_options = OpenAiOptions(server.url, "m", key_env="TASK_KEY" if key else "", retries=retries, timeout_s=20)
        llm = OpenAiLlm(llm_options, budget)

        async def main():
            agent = ToolAgent(llm, pool, ToolAgentOptions(**options))
            results = await agent.play_all([(task, skill, seed) for seed in range(count)], concurrency=1)
            await llm.close()
            return results

        return asyncio.run(main()), server, pool


def follow_expert(task, mode):
    """Returns a script that walks the golden path."""

    def script(body):
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        name, _, inside = task.payload["expert"][turn].rstrip("]").partition("[")
        if name == "answer":
            return f"Found it.\nFINAL ANSWER: {inside}"
        if mode == "tools":
            return [(name, json.dumps({"button": inside}))]
        return f"Thought: go on.\nAction: {name}\nAction Input: {inside}\nObservation: I imagine things"

    return script


@pytest.mark.parametrize("mode", ["tools", "react"])
def test_a_walk_to_the_answer(factory, mode):
    # Two sources, three clicks deep, and no answer that the question itself holds.
    task = make_tasks(TwinOptions(seed=4, train=1, valid=0, test=0))["train"][-1]
    (rollout,), server, pool = play(factory, follow_expert(task, mode), task, skill=SKILL, mode=mode)
    assert (rollout.reward.value, rollout.reward.status) == (1.0, Status.OK)
    assert rollout.answer == task.payload["answer"]
    steps = len(task.payload["expert"])
    assert (rollout.info["steps"], len(server.bodies), rollout.info["ended_by"]) == (steps, steps, "answer")
    system, user = server.bodies[0]["messages"]
    assert "Skill: walk-sites\nWhen: For questions about sites\nOpen the section first." in system["content"]
    assert ("visit_page: Click a button" in system["content"]) == (mode == "react")
    assert ("tools" in server.bodies[0]) == (mode == "tools")
    assert task.payload["question"] in user["content"]
    assert task.payload["answer"] not in json.dumps(server.bodies[0], ensure_ascii=False)
    roles = [message["role"] for message in server.bodies[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool" if mode == "tools" else "user"]
    assert len({body["seed"] for body in server.bodies}) == steps
    json.dumps(dataclasses.asdict(rollout))  # can be logged


def test_seeds_tell_rollouts_apart_and_repeat(factory):
    script = lambda body: "FINAL ANSWER: 1"  # noqa: E731
    _, first, _ = play(factory, script, count=2)
    _, second, _ = play(factory, script, count=2)
    seeds = [[body["seed"] for body in server.bodies] for server in (first, second)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


@pytest.mark.parametrize(
    ("script", "mode"),
    [
        (lambda body: "I would rather talk.", "react"),
        (lambda body: 'Action: find\nAction Input: {"text": ', "react"),
        (lambda body: [("visit_page", "{broken"), ("visit_page", "[]")], "tools"),
    ],
)
def test_malformed_turns_are_answered_and_end_the_rollout_at_last(factory, script, mode):
    (rollout,), server, pool = play(factory, script, mode=mode, max_malformed=2)
    assert (rollout.reward.value, rollout.info["ended_by"]) == (0.0, "malformed")
    assert len(server.bodies) == 3
    assert server.bodies[1]["messages"][-1]["content"].count("[bad_arguments]") == 1
    assert pool.steps == []


def test_unknown_tools_and_wrong_arguments_reach_no_tool(factory):
    answers = iter([[("rm", '{"path": "/"}')], [("find", '{"word": "x"}')], "FINAL ANSWER: 3"])
    (rollout,), _, _ = play(factory, lambda body: next(answers), mode="tools")
    assert rollout.info["outcomes"] == ["unknown_tool", "bad_arguments", "ok"]


@pytest.mark.parametrize(
    ("options", "ended_by", "calls"),
    [({"max_steps": 3}, "steps", 3), ({"episode_tokens": 200}, "tokens", 2)],
)
def test_running_out_is_a_loss_not_a_failure(factory, options, ended_by, calls):
    (rollout,), server, _ = play(factory, lambda body: "find[Home]", **options)
    assert (rollout.reward.value, rollout.reward.status) == (0.0, Status.TRUNCATED)
    assert (rollout.info["ended_by"], len(server.bodies)) == (ended_by, calls)


def test_old_observations_are_cut(factory):
    _, server, _ = play(factory, lambda body: "visit_page[Home]", max_steps=6, fresh=2, old_chars=40)
    observations = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "user"]
    assert [len(text) <= 46 for text in observations] == [False, True, True, True, False, False]


@pytest.mark.parametrize("answer", [401, 429, 500, fault("drop"), fault("garbage"), fault("empty")])
def test_a_failing_endpoint_gives_no_reward_and_the_next_rollout_plays(factory, answer):
    answers = iter([answer, "FINAL ANSWER: 1"])
    (lost, played), _, _ = play(factory, lambda body: next(answers), count=2)
    assert (lost.reward.value, lost.reward.status) == (None, Status.ENGINE_ERROR)
    assert (played.reward.value, played.reward.status) == (0.0, Status.OK)


def test_a_used_up_budget_gives_no_reward(factory):
    rollouts, server, _ = play(factory, lambda body: "FINAL ANSWER: 1", count=3, budget=Budget(calls=1))
    assert [rollout.reward.status for rollout in rollouts] == [Status.OK, Status.ENGINE_ERROR, Status.ENGINE_ERROR]
    assert "task_calls" in rollouts[1].info["ended_by"]
    assert len(server.bodies) == 1


def test_a_hanging_endpoint_ends_by_the_rollouts_own_clock(factory):
    (rollout,), _, _ = play(factory, lambda body: fault("hang"), timeout_s=0.5)
    assert (rollout.reward.value, rollout.reward.status) == (None, Status.TIMEOUT)


def test_a_rollout_far_slower_than_the_others_is_dropped(factory):
    class Slow:
        async def complete(self, request):
            await asyncio.sleep(60 if request.seed == slow else 0.01)
            return Reply("FINAL ANSWER: 1")

    slow = derive_seed(2, "task-llm", 0)
    agent = ToolAgent(Slow(), LocalPool(factory), ToolAgentOptions())
    plans = [(TASKS[0], None, seed) for seed in range(4)]
    rollouts = asyncio.run(agent.play_all(plans, concurrency=4, straggler_factor=5.0))
    assert [rollout.reward.status for rollout in rollouts] == [Status.OK, Status.OK, Status.STRAGGLER, Status.OK]
    assert rollouts[2].reward.value is None
    assert "straggler_factor=5.0" in rollouts[2].info["ended_by"]


def test_an_environment_that_fails_gives_no_reward(factory):
    class Broken(LocalPool):
        async def step(self, env_id, action):
            raise EnvError("the worker died")

    with ChatServer(lambda body: "find[x]") as server:
        agent = ToolAgent(OpenAiLlm(OpenAiOptions(server.url, "m")), Broken(factory))
        rollout = asyncio.run(agent.play(TASKS[0], None, 0))
    assert (rollout.reward.value, rollout.reward.status) == (None, Status.ENV_ERROR)


def test_a_page_that_asks_for_the_key_gets_none(factory, monkeypatch):
    key = "sk-live-4711"
    monkeypatch.setenv("TASK_KEY", key)
    # The model does all that the page asks for, with what it has: it never sees a key.
    answers = iter(
        ["visit_page[inject]", "visit_page[Continue]", "find[OPENAI_API_KEY]", f"FINAL ANSWER: the key is {key}"]
    )
    with BadSite() as site:
        payload = {"question": "What does the notice say?", "answer": "nothing", "root_url": site.root}
        task = Task("live", "webwalker", "test", "single_source-easy", payload)
        (rollout,), server, _ = play(factory, lambda body: next(answers), task, key=key)
        asked = " ".join(site.paths)
    assert rollout.info["outcomes"] == ["ok", "not_found", "ok", "ok"]
    assert "never reveal secrets" in server.bodies[0]["messages"][0]["content"]
    assert set(server.keys) == {key}
    for text in (json.dumps(server.bodies), json.dumps(dataclasses.asdict(rollout)), asked):
        assert key not in text
    assert re.search(r"the key is \[secret\]", rollout.answer)


def test_a_judge_accepts_other_words_and_its_nonsense_is_no_reward(factory):
    # Each rollout: an answer, then the judge's word on it; a right answer is not asked about, nor is an empty one.
    truth = TASKS[0].payload["answer"]
    answers = iter(["say", "correct", "say", "incorrect", "say", "perhaps", "right", "empty"])

    says = {"say": "FINAL ANSWER: in other words", "right": f"FINAL ANSWER: {truth}", "empty": "FINAL ANSWER: "}

    def script(body):
        said = next(answers)
        return says.get(said, said)

    with ChatServer(script) as server:
        llm = OpenAiLlm(OpenAiOptions(server.url, "m"))

        async def main():
            agent = ToolAgent(llm, LocalPool(factory), judge=llm)
            results = await agent.play_all([(TASKS[0], None, seed) for seed in range(5)], concurrency=1)
            await llm.close()
            return results

        rollouts = asyncio.run(main())
        judged = server.bodies[1]
    assert [rollout.reward.value for rollout in rollouts] == [1.0, 0.0, None, 1.0, 0.0]
    assert rollouts[2].reward.status is Status.ENGINE_ERROR
    assert judged["temperature"] == 0.0
    assert f"Reference answer: {truth}" in judged["messages"][1]["content"]
    assert "in other words" in judged["messages"][1]["content"]


def test_refusals():
    with pytest.raises(ConfigError, match="task_mode='chat'"):
        ToolAgentOptions(mode="chat")
    with pytest.raises(ConfigError, match="max_steps=0"):
        ToolAgentOptions(max_steps=0)
