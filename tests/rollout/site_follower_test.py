"""The local scale's task LLM on websites: what it solves is decided by the skill, and by what no question tells."""

import asyncio

import pytest

from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.data.editor_corpus import IDLE_STEPS, SEED_SKILL, skill_body
from sage_jax.envs.webwalker import TwinOptions, WebwalkerFactory, make_tasks
from sage_jax.rollout.site_follower import STEP_OF, SiteFollower
from sage_jax.skills import SkillFile
from sage_jax.testing.local_pool import LocalPool

OPTIONS = {"seed": 3, "train": 4, "valid": 0, "test": 0, "languages": ("en",)}
NOW, PAST = (make_tasks(TwinOptions(**OPTIONS, past=past))["train"] for past in (0.0, 1.0))
EASY, MEDIUM, HARD = (f"single_source-{depth}" for depth in ("easy", "medium", "hard"))


@pytest.fixture(scope="module")
def solved():
    """Returns solved(steps, tasks) -> mean reward by family of one rollout a question."""
    factory = WebwalkerFactory()

    def play(steps, tasks=NOW, slip=0.0, seed=0):
        skill = SkillFile(SEED_SKILL.name, SEED_SKILL.description, skill_body(steps)) if steps else None
        agent = ToolAgent(SiteFollower(slip=slip), LocalPool(factory), ToolAgentOptions(max_steps=25, old_chars=0))
        rollouts = asyncio.run(agent.play_all([(task, skill, seed) for task in tasks], concurrency=4))
        rewards = {}
        for rollout in rollouts:
            rewards.setdefault(rollout.task.family, []).append(rollout.reward.value)
        return {family: sum(values) / len(values) for family, values in rewards.items()}

    yield play
    factory.close()


def test_each_step_opens_what_it_is_for(solved):
    alone, walk, deep = solved(()), solved(("open sections",)), solved(("open sections", "open groups"))
    assert alone == solved(IDLE_STEPS)  # words it does not know change nothing
    assert (alone[EASY], alone[MEDIUM], alone[HARD]) == (1.0, 0.0, 0.0)
    assert (walk[EASY], walk[MEDIUM], walk[HARD]) == (1.0, 1.0, 0.0)
    assert (deep[EASY], deep[MEDIUM], deep[HARD]) == (1.0, 1.0, 1.0)
    assert all(deep[f"multi_source-{depth}"] == 0.0 for depth in ("easy", "medium", "hard"))
    everything = solved(("open sections", "open groups", *STEP_OF.values()))
    assert set(everything.values()) == {1.0}


def test_the_archive_is_right_for_last_year_and_wrong_for_this(solved):
    old, deep = ("open archive",), ("open archive", "open groups")
    now = ("open sections", "open groups")
    assert (solved(old, PAST)[MEDIUM], solved(old, PAST)[HARD]) == (1.0, 0.0)
    assert (solved(deep, PAST)[MEDIUM], solved(deep, PAST)[HARD]) == (1.0, 1.0)
    assert (solved(now, PAST)[MEDIUM], solved(now, PAST)[HARD]) == (0.0, 0.0)
    assert (solved((*now, *old))[MEDIUM], solved((*now, *old))[HARD]) == (0.0, 0.0)
    both = solved((*deep, *STEP_OF.values()), PAST)
    assert both["multi_source-medium"] == both["multi_source-hard"] == 1.0


def test_a_slip_costs(solved):
    steps = ("open sections", "open groups")
    first, again = (solved(steps, slip=0.2, seed=1) for _ in range(2))
    assert first == again
    assert sum(first.values()) < sum(solved(steps).values())


def test_a_question_it_does_not_understand():
    assert SiteFollower().next("Why?", ["Question: Why?"], [], set()) == "FINAL ANSWER: unknown"
