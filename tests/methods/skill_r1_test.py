"""Skills over generations: what the editor sees and writes, which sibling is kept, and what each skill is paid."""

import asyncio
import dataclasses
import json
import re

import numpy as np
import pytest

from sage_jax.agents.editor import Attempt, Editor, EditorOptions, render_history
from sage_jax.agents.tool_agent import TaskRollout, ToolAgent, ToolAgentOptions
from sage_jax.data.editor_corpus import editor_words
from sage_jax.data.word_tokenizer import build_tokenizer
from sage_jax.envs.base import Observation, StepResult
from sage_jax.errors import BudgetError, ConfigError, EngineError
from sage_jax.methods import skill_r1
from sage_jax.methods.skill_r1 import SkillR1Options
from sage_jax.rollout.task_llm import Reply
from sage_jax.skills import SkillFile
from sage_jax.testing.engines import ScriptedEngine
from sage_jax.types import RewardResult, Status, Task

SEED_SKILL = SkillFile("look-up", "to find things", "look shelf")
TRUTH = "fridge 77"
TASKS = [Task(f"t{n}", "toy", "train", "family", {"question": f"find pen {n}", "answer": TRUTH}) for n in range(3)]


class ToyPool:
    """One step a task: an answer, right or wrong."""

    async def reset(self, env_id, task, seed, *, expert=False):
        return Observation(f"Question: {task.payload['question']}", (), {})

    async def step(self, env_id, action):
        won = action == f"answer[{TRUTH}]"
        info = {"answer": action[7:-1], "outcome": "ok"}
        return StepResult("Answered.", (), float(won), True, won, info)

    async def release(self, env_id):
        pass


class Reader:
    """A task LLM that does what the skill says: "open fridge" solves, "find" for some seeds, "desk" breaks it."""

    def __init__(self):
        self.seeds = []

    async def complete(self, request):
        body = request.messages[0]["content"].rpartition("\n")[2]  # the skill's one line
        self.seeds.append(request.seed)
        if "desk" in body:
            raise BudgetError("used up")
        solved = "open fridge" in body or ("find" in body and request.seed % 2)
        return Reply(f"FINAL ANSWER: {TRUTH if solved else 'shelf'}", prompt_tokens=10, completion_tokens=5)

    async def close(self):
        pass


@pytest.fixture(scope="module")
def word_tokenizer():
    """Knows the words of the local scale's prompts and of the toy tasks."""
    return build_tokenizer({*editor_words(), *"find pen look shelf open fridge desk things 77".split()}, 512)


def make_editor(tokenizer, script, **options):
    """Returns an editor whose skills come from script(generation, sibling, prompt text)."""
    prompts = []

    def write(request, turn):
        generation, sibling = re.fullmatch(r"skill/.*/(\d+)/(\d+)", request.request_id).groups()
        prompts.append(tokenizer.decode(request.ids))
        return script(int(generation), int(sibling), prompts[-1])

    engine = ScriptedEngine(tokenizer, write)
    encode = lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    return Editor(engine, tokenizer, EditorOptions(format="body", **options), encode=encode), engine, prompts


def evolve(tokenizer, script, options, tasks=TASKS[:1], **editor_options):
    editor, engine, prompts = make_editor(tokenizer, script, **editor_options)
    reader = Reader()
    agent = ToolAgent(reader, ToyPool(), ToolAgentOptions())
    evolutions = asyncio.run(
        skill_r1.evolve_all(editor, agent, tasks, lambda task: SEED_SKILL, options, seed=3, tag="0")
    )
    assert not engine.sessions  # all of them were ended
    return evolutions, prompts, reader


BODIES = {(1, 0): "look shelf", (1, 1): "find pen", (2, 0): "open fridge", (2, 1): "look desk"}


def test_generations_keep_the_best_and_show_it_to_the_next(word_tokenizer):
    options = SkillR1Options(generations=2, siblings=2, keep="best", rollouts=8)
    (evolution,), prompts, reader = evolve(word_tokenizer, lambda g, m, _: BODIES[g, m], options)
    assert evolution.kept == (1, 0)
    means = [[candidate.mean(8) for candidate in siblings] for siblings in evolution.generations]
    assert means[0][0] == 0.0
    assert 0 < means[0][1] < 1
    assert means[1] == [1.0, None]  # "desk": every rollout fails for want of budget, and has no reward
    # Siblings see one prompt; the second generation sees the kept skill of the first.
    assert prompts[0] == prompts[1]
    assert prompts[2] == prompts[3]
    assert "find pen" in prompts[2].rpartition("generation 1")[2]
    assert "generation 0" in prompts[2]
    # Siblings share the seeds of their rollouts: the seed's 8, then 8 a generation.
    assert len(set(reader.seeds)) == 24
    # The truth is nowhere in what the editor reads, but where a rollout has answered it itself.
    assert TRUTH.replace(" ", "") not in prompts[0].replace(" ", "")


def test_by_default_any_sibling_goes_on(word_tokenizer):
    options = SkillR1Options(generations=2, siblings=2, rollouts=8)
    (evolution,), prompts, _ = evolve(word_tokenizer, lambda g, m, _: BODIES[g, m], options)
    assert evolution.kept == (0, 0)  # the first of them, though the other has the higher reward
    assert "look shelf" in prompts[2].rpartition("generation 1")[2]

    def script(generation, sibling, prompt):
        if sibling == 0:
            raise EngineError("gone")
        return "open fridge"

    (evolution,), _, _ = evolve(word_tokenizer, script, options)
    assert evolution.kept == (1, 1)  # one that was written


def test_advantages_are_those_of_the_arrays(word_tokenizer):
    options = SkillR1Options(generations=2, siblings=2, keep="best", rollouts=8, inter_coef=0.5)
    evolutions, _, _ = evolve(word_tokenizer, lambda g, m, _: BODIES[g, m], options)
    half = evolutions[0].generations[0][1].mean(8)
    trajectories = skill_r1.assign_advantages(evolutions, options, on_policy=True)
    got = {(t.info["generation"], t.info["sibling"]): t.turns[0].advantage for t in trajectories}
    # Generation 1: 0 and half around their mean, nothing against the seed. Generation 2: alone, 1 against half.
    assert got[1, 0] == pytest.approx(-half / 2)
    assert got[1, 1] == pytest.approx(half / 2)
    assert got[2, 0] == pytest.approx(0.5 * (1 - half))
    assert got[2, 1] is None  # no rollout of it has a reward
    assert all(turn.stream == "skill" and turn.starts_context for t in trajectories for turn in t.turns)
    assert [t.reward.value for t in trajectories] == [0.0, half, 1.0, None]


def test_literal_learns_from_the_step_alone_and_splits_off_policy(word_tokenizer):
    bodies = {1: "find pen", 2: "open fridge"}
    options = SkillR1Options(generations=2, siblings=1, rollouts=8, mode="literal", inter_coef=0.5)
    evolutions, _, _ = evolve(word_tokenizer, lambda g, m, _: bodies[g], options)
    half = evolutions[0].generations[0][0].mean(8)
    once = [t.turns[0].advantage for t in skill_r1.assign_advantages(evolutions, options, on_policy=True)]
    assert once == [None, pytest.approx(8 * 0.5 * (1 - half))]
    # Generation 1 off policy: its positive part is (number solved) * (1 - half), its negative the same with a minus.
    split = [t.turns[0].advantage for t in skill_r1.assign_advantages(evolutions, options, on_policy=False)]
    part = 2 * 8 * half * (1 - half)
    assert split == pytest.approx([part, -part, 2 * 4 * (1 - half), 0.0])
    no_step = dataclasses.replace(options, inter_coef=0.0)
    assert [t.turns[0].advantage for t in skill_r1.assign_advantages(evolutions, no_step, on_policy=True)] == [None] * 2
    flat = skill_r1.assign_advantages(evolutions, no_step, on_policy=True, keep_flat=True)
    assert [t.turns[0].advantage for t in flat] == [0.0, 0.0]  # for the KL term


def test_a_text_that_is_no_skill_is_not_played_and_counts_as_failed(word_tokenizer):
    options = SkillR1Options(generations=1, siblings=2, keep="best", rollouts=4)
    words = "look " * 30
    (evolution,), _, reader = evolve(
        word_tokenizer, lambda g, m, _: words if m == 0 else "open fridge", options, skill_tokens=20
    )
    candidate = evolution.generations[0][0]
    assert candidate.written.problem == "longer than 20 tokens"
    assert candidate.rewards(4) == [0.0] * 4
    assert len(reader.seeds) == 8  # the seed's and the other sibling's
    rewards, valid, kept = skill_r1.reward_arrays([evolution], options)
    assert valid.all()
    assert kept.tolist() == [[1]]


def test_engine_failures_leave_the_statistics_and_may_end_an_evolution(word_tokenizer):
    def script(generation, sibling, prompt):
        if generation == 2 or sibling == 1:
            raise EngineError("gone")
        return "open fridge"

    options = SkillR1Options(generations=4, siblings=2, rollouts=2)
    (evolution,), _, _ = evolve(word_tokenizer, script, options)
    assert len(evolution.generations) == 2
    rewards, valid, _ = skill_r1.reward_arrays([evolution], options)
    assert valid[0].any(axis=-1).tolist() == [[True, False], [False, False], [False, False], [False, False]]
    trajectories = skill_r1.assign_advantages([evolution], options, on_policy=True)
    assert [t.turns[0].advantage for t in trajectories] == [None]  # alone in its generation: nothing to compare with


def test_an_instance_does_not_depend_on_the_others(word_tokenizer):
    options = SkillR1Options(generations=2, siblings=2, rollouts=4)
    script = lambda g, m, prompt: "find pen" if "pen 1" in prompt else BODIES[g, m]  # noqa: E731
    together, _, _ = evolve(word_tokenizer, script, options, TASKS)
    alone, _, _ = evolve(word_tokenizer, script, options, TASKS[1:2])
    assert together[1].to_json() == alone[0].to_json()
    twice, _, _ = evolve(word_tokenizer, script, options, [TASKS[1], TASKS[1]])
    assert [len(e.generations) for e in twice] == [2, 2]
    assert twice[0].to_json() == alone[0].to_json()


def test_banks_and_metrics(word_tokenizer, tmp_path):
    options = SkillR1Options(generations=2, siblings=2, keep="best", rollouts=8)
    evolutions, _, _ = evolve(word_tokenizer, lambda g, m, _: BODIES[g, m], options)
    skill_r1.write_banks(tmp_path / "banks" / "1.jsonl", evolutions)
    (bank,) = map(json.loads, (tmp_path / "banks" / "1.jsonl").read_text().splitlines())
    assert bank["seed"]["skill"] == SEED_SKILL.text
    assert [[c["kept"] for c in siblings] for siblings in bank["generations"]] == [[False, True], [True, False]]
    assert bank["generations"][1][1]["rollouts"][0]["status"] == "engine_error"
    assert "messages" not in json.dumps(bank)
    half = evolutions[0].generations[0][1].mean(8)
    assert skill_r1.generation_curve(evolutions, options) == [(0.0, 0.0), (half, 1.0), (1.0, 1.0)]
    metrics = skill_r1.round_metrics(
        evolutions, options, skill_r1.assign_advantages(evolutions, options, on_policy=True)
    )
    assert metrics["generation/1/reward"] == half
    assert metrics["status/engine_error"] == 8
    assert metrics["skill/written"] == 4
    assert metrics["skill/reward"] == pytest.approx((0.0 + half + 1.0) / 3)  # the fourth has none


def rollout(value, answer="a", outcomes=("ok", "ok"), ended_by="answer"):
    reward = RewardResult(value, Status.OK if value is not None else Status.ENV_ERROR)
    info = {
        "outcomes": list(outcomes),
        "ended_by": ended_by,
        "success": bool(value),
        "steps": 2,
        "tokens": 0,
        "cost": 0,
    }
    return TaskRollout(TASKS[0], reward, answer, (), info)


def test_history_shows_outcomes_and_fits_its_budget():
    words = lambda text: len(text.split())  # noqa: E731
    old = Attempt(0, SEED_SKILL, (rollout(0.0), rollout(1.0)))
    bad = Attempt(1, None, (), "no front matter")
    new = Attempt(
        2,
        SkillFile("b", "newer", "step one\nstep two"),
        (rollout(1.0), rollout(0.0, "", ended_by="steps"), rollout(None)),
    )
    text = render_history([old, bad, new], budget=500, length=words)
    assert text.splitlines()[0] == "Generation 0 helped, solved 1 of 2: look shelf"
    assert text.splitlines()[1] == "Generation 1 failed, solved 0 of 0: no skill: no front matter"
    assert text.splitlines()[2] == '- generation 2, rollout 1: solved, answered "a"; calls: 2 ok'
    assert text.splitlines()[3] == "- generation 2, rollout 2: failed, gave no answer (steps); calls: 2 ok"
    assert text.splitlines()[4] == "Generation 2 helped, solved 1 of 2:"  # the third rollout has no reward
    assert text.endswith(new.skill.text)
    body = render_history([old, bad, new], form="body", budget=500, length=words)
    assert body.endswith("Generation 2 helped, solved 1 of 2:\nstep one\nstep two")
    long = Attempt(1, SkillFile("b", "newer", "open fridge\nlook"), (rollout(0.0),))  # its description stands for it
    text = render_history([long, new], budget=500, length=words)
    assert text.startswith("Generation 1 failed, solved 0 of 1: newer\n")
    for budget in (60, 45, 30, 20, 8):
        shorter = render_history([old, bad, new], budget=budget, length=words)
        assert words(shorter) <= budget
        assert "Generation 2" in shorter
    assert "Generation 0" not in render_history([old, bad, new], budget=45, length=words)


def test_a_whole_skill_file_is_read_after_the_thought():
    editor = object.__new__(Editor)
    editor.options = EditorOptions()
    new = SkillFile("new-one", "d", "b")
    assert editor._read(f"<think>---</think>\n{new.text}", SEED_SKILL, truncated=False) == (new, "")
    skill, problem = editor._read("Sure! Here is it", SEED_SKILL, truncated=False)
    assert skill is None
    assert "front matter" in problem


def test_refusals():
    with pytest.raises(ConfigError, match="mode='both'"):
        SkillR1Options(mode="both")
    with pytest.raises(ConfigError, match="siblings=4.*use 1"):
        SkillR1Options(mode="literal")
    with pytest.raises(ConfigError, match="keep='last': must be one of first, best"):
        SkillR1Options(keep="last")
    with pytest.raises(ConfigError, match="generations=0"):
        SkillR1Options(generations=0)
    with pytest.raises(ConfigError, match="skill_format='html'"):
        EditorOptions(format="html")
    assert np.isfinite(SkillR1Options().inter_coef)
