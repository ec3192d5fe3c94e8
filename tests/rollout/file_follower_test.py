"""The local scale's task LLM in GAIA's worlds: steps by kind of question, pages by layout."""

import asyncio

import pytest

from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.data.editor_corpus import IDLE_STEPS, skill_body
from sage_jax.envs.gaia import GaiaFactory, TwinOptions, make_tasks
from sage_jax.envs.gaia.worlds import LAYOUTS
from sage_jax.rollout.file_follower import STEPS, FileFollower, step_for
from sage_jax.skills import SkillFile
from sage_jax.testing.local_pool import LocalPool

FORMATS = ("csv", "json", "txt")


@pytest.fixture(scope="module")
def solved():
    """Returns solved(layout, steps) -> questions solved, as (level, kind); `steps` may depend on the question."""
    factory = GaiaFactory()

    def play(layout, steps):
        agent = ToolAgent(FileFollower(slip=0.0), LocalPool(factory), ToolAgentOptions(max_steps=25, old_chars=0))
        plans = []
        for form in FORMATS:
            for task in make_tasks(TwinOptions(seed=3, train=1, valid=0, test=0, formats=(form,), layouts=(layout,)))[
                "train"
            ]:
                chosen = steps(task.payload["question"]) if callable(steps) else steps
                plans.append((task, SkillFile("a", "b", skill_body(chosen)) if chosen else None, 0))
        rollouts = asyncio.run(agent.play_all(plans, concurrency=4))
        right: dict[tuple[int, str], list[float]] = {}
        for rollout in rollouts:
            payload = rollout.task.payload
            right.setdefault((payload["level"], payload["kind"]), []).append(rollout.reward.value)
        return {key for key, values in right.items() if all(values)}

    yield play
    factory.close()


def with_fitting(*steps):
    return lambda question: (*steps, step_for(question) or IDLE_STEPS[0])


EVERY = {(level, kind) for level in (1, 2, 3) for kind in ("number", "string", "list")}
FILES_ALONE = {key for key in EVERY if key[0] == 1}


def test_without_a_skill_it_reads_one_cell(solved):
    assert solved("plain", ()) == solved("plain", IDLE_STEPS) == {(1, "string")}
    assert solved("plain", with_fitting()) == FILES_ALONE


def test_how_pages_are_found_depends_on_the_layout(solved):
    search, guess = with_fitting("search pages"), with_fitting("guess address")
    assert solved("plain", search) == solved("plain", guess) == EVERY
    assert solved("numbered", search) == EVERY
    assert solved("numbered", guess) == FILES_ALONE
    assert solved("stale", guess) == EVERY
    wrong = solved("stale", search)
    assert wrong >= FILES_ALONE
    assert not {key for key in wrong if key[0] == 2}
    assert LAYOUTS == ("plain", "numbered", "stale")


def test_each_kind_needs_its_step(solved):
    for step in STEPS[2:]:
        lacking = solved("plain", lambda question, step=step: set(STEPS) - {step})
        assert EVERY - lacking, step  # some kind is not solved without it


def test_a_question_it_does_not_understand():
    assert FileFollower().next("Why?", ["Question: Why?"], [], set()) == "FINAL ANSWER: unknown"
    assert step_for("Why?") == ""
