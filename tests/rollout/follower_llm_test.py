"""The local scale's task LLM: what it solves is decided by the skill, in the order that editors have to find out."""

import asyncio

import pytest

from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.data.editor_corpus import IDLE_STEPS, SEED_SKILL, skill_body
from sage_jax.envs.webwalker import TwinOptions, WebwalkerFactory, make_tasks
from sage_jax.errors import BudgetError
from sage_jax.rollout.follower_llm import STEPS, FollowerLlm
from sage_jax.rollout.task_llm import Budget, ChatRequest
from sage_jax.skills import SkillFile

TASKS = make_tasks(TwinOptions(seed=3, train=4, valid=0, test=0, languages=("en",)))["train"]


class LocalPool:
    """Environments in this process, with a pool's interface."""

    def __init__(self, factory):
        self._factory, self._envs = factory, {}

    async def reset(self, env_id, task, seed, *, expert=False):
        self._envs[env_id] = self._factory()
        return self._envs[env_id].reset(task, seed, expert=expert)

    async def step(self, env_id, action):
        return self._envs[env_id].step(action)

    async def release(self, env_id):
        self._envs.pop(env_id, None)


@pytest.fixture(scope="module")
def solved():
    """Returns solved(steps, slip=...) -> mean reward by family of one rollout a question."""
    factory = WebwalkerFactory()

    def play(steps, slip=0.0, seed=0):
        skill = SkillFile(SEED_SKILL.name, SEED_SKILL.description, skill_body(steps)) if steps else None
        agent = ToolAgent(FollowerLlm(slip=slip), LocalPool(factory), ToolAgentOptions(max_steps=25, old_chars=0))
        rollouts = asyncio.run(agent.play_all([(task, skill, seed) for task in TASKS], concurrency=4))
        rewards = {}
        for rollout in rollouts:
            rewards.setdefault(rollout.task.family, []).append(rollout.reward.value)
        return {family: sum(values) / len(values) for family, values in rewards.items()}

    yield play
    factory.close()


def test_each_step_opens_what_it_is_for(solved):
    alone, walk = solved(()), solved(("open sections", "check edition"))
    deep = solved(("open sections", "open groups", "check edition"))
    everything = solved(STEPS)
    assert alone == solved(IDLE_STEPS)  # words it does not know change nothing
    easy, medium, hard = (f"single_source-{depth}" for depth in ("easy", "medium", "hard"))
    assert (alone[easy], alone[medium], alone[hard]) == (1.0, 0.0, 0.0)
    assert (walk[easy], walk[medium], walk[hard]) == (1.0, 1.0, 0.0)
    assert (deep[easy], deep[medium], deep[hard]) == (1.0, 1.0, 1.0)
    assert deep["multi_source-medium"] == 0.0
    assert everything["multi_source-easy"] == everything["multi_source-medium"] == 1.0
    assert everything["multi_source-hard"] > 0


def test_without_the_check_it_believes_last_years_pages(solved):
    assert solved(("open sections", "open groups"))["single_source-medium"] == 0.0


def test_it_slips_by_its_seed(solved):
    steps = ("open sections", "open groups", "check edition")
    first, again, other = (solved(steps, slip=0.2, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other or first["single_source-hard"] < 1.0
    assert sum(first.values()) < sum(solved(steps).values())


def test_a_question_it_does_not_understand_and_a_budget():
    request = ChatRequest(({"role": "system", "content": ""}, {"role": "user", "content": "Question: Why?"}))
    llm = FollowerLlm(budget=Budget(calls=1))
    assert asyncio.run(llm.complete(request)).text == "FINAL ANSWER: unknown"
    with pytest.raises(BudgetError, match="task_calls"):
        asyncio.run(llm.complete(request))
