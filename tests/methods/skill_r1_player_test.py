"""Rounds and evaluations of Skill-R1 with the local task LLM on generated sites; the editor's texts are scripted."""

import asyncio
import dataclasses
import json

import pytest

from sage_jax.agents.editor import Editor, EditorOptions
from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.config import to_dataclass
from sage_jax.data.editor_corpus import SEED_SKILL, editor_words, skill_body
from sage_jax.data.word_tokenizer import build_tokenizer
from sage_jax.envs.webwalker import TwinOptions, WebwalkerFactory, make_tasks
from sage_jax.errors import AbortedError, EngineError
from sage_jax.methods.skill_r1_player import SkillR1Player
from sage_jax.metrics.evaluation import summarise
from sage_jax.metrics.names import check_names
from sage_jax.rollout.site_follower import SiteFollower
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank, SkillFile, SkillFolder
from sage_jax.testing.engines import ScriptedEngine
from sage_jax.testing.local_pool import LocalPool
from sage_jax.training.evaluate import evaluate_skills

TASKS = make_tasks(TwinOptions(seed=3, train=1, valid=0, test=1, languages=("en",)))
VALUES = {
    "method": "skillr1",
    "benchmark": "webwalker",
    "sft_episodes": 0,
    "eval_splits": ("test",),
    "eval_episodes": 6,
    "generations": 2,
    "siblings": 2,
    "skill_rollouts": 2,
    "skill_format": "body",
    "kl_coef": 0.0,
}


@pytest.fixture
def player(tmp_path):
    factory = WebwalkerFactory()
    tokenizer = build_tokenizer(editor_words(), 512)
    good = skill_body(("open sections", "open groups", "add values", "list both"))

    def write(request, turn):
        generation, sibling = request.request_id.rsplit("/", 2)[-2:]
        return good if generation == "2" and sibling == "0" else "read news"

    engine = ScriptedEngine(tokenizer, write)
    encode = lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    options = EditorOptions(format="body", history_tokens=160, skill_tokens=16)
    agent = ToolAgent(SiteFollower(slip=0.0), LocalPool(factory), ToolAgentOptions(max_steps=25, old_chars=0))
    other = SkillFile("multi-source-hard", "for two pages", "list both")
    seeds = SkillFolder().put(SEED_SKILL).put(other)
    editor = Editor(engine, tokenizer, options, encode=encode)
    yield SkillR1Player(editor, agent, to_dataclass(VALUES, RunSettings), tmp_path, seeds), engine
    factory.close()


def test_a_round(player, tmp_path):
    player, _ = player
    hard = [task for task in TASKS["train"] if task.family == "single_source-hard"]
    result = asyncio.run(player.play_round(None, player.settings, hard, (), SkillBank(), 4))
    check_names(result.metrics)
    got = {(t.info["generation"], t.info["sibling"]): t.turns[0].advantage for t in result.trajectories}
    # Nobody solves it in generation 1; in generation 2 the good skill does: 1 - 1/2 + (1 - 0), and 0 - 1/2 + 0.
    assert got == {(1, 0): None, (1, 1): None, (2, 0): 1.5, (2, 1): -0.5}
    (bank,) = map(json.loads, (tmp_path / "banks" / "000005.jsonl").read_text().splitlines())
    assert [c["kept"] for c in bank["generations"][1]] == [True, False]
    assert [result.metrics[f"generation/{g}/reward"] for g in range(3)] == [0.0, 0.0, 1.0]


def test_a_round_without_any_skill_or_any_rollout_is_an_error(player, tmp_path):
    player, engine = player
    hard = [task for task in TASKS["train"] if task.family == "single_source-hard"]

    def play(player):
        return asyncio.run(player.play_round(None, player.settings, hard, (), SkillBank(), 4))

    class Gone:
        async def complete(self, request):
            raise EngineError("the endpoint is gone")

    agent = ToolAgent(Gone(), player.agent.pool, player.agent.options)
    with pytest.raises(EngineError, match="round 5, rollouts: none of its .*the endpoint is gone"):
        play(dataclasses.replace(player, agent=agent))
    engine.close()
    with pytest.raises(EngineError, match="round 5, skills: none of its 2 .*scripted engine is closed"):
        play(player)
    assert not (tmp_path / "banks").exists()


def test_a_round_whose_rollouts_were_all_dropped_teaches_nothing(player):
    player, _ = player

    class Cut:
        async def complete(self, request):
            raise AbortedError("new weights came in")

    drop = to_dataclass({**VALUES, "ahead": True, "importance_cap": 2.0, "running_turns": "drop"}, RunSettings)
    player = dataclasses.replace(player, agent=ToolAgent(Cut(), player.agent.pool, player.agent.options))
    with pytest.raises(EngineError, match="round 5, rollouts: none of its .*new weights came in"):
        asyncio.run(player.play_round(None, player.settings, TASKS["train"][:1], (), SkillBank(), 4))
    player = dataclasses.replace(player, settings=drop)
    result = asyncio.run(player.play_round(None, drop, TASKS["train"][:1], (), SkillBank(), 4))
    assert [turn.advantage for one in result.trajectories for turn in one.turns] == [None] * len(result.trajectories)
    assert "reward/mean" not in result.metrics


def test_an_evaluation(player, tmp_path):
    player, engine = player
    path = tmp_path / "eval" / "before.json"
    outcomes = asyncio.run(evaluate_skills(player, player.settings, {"test": TASKS["test"]}, path))
    rows = {(row.family, row.retrieval): row.success for row in summarise(outcomes)}
    assert rows["single_source-hard", False] == 0.0
    assert rows["single_source-hard", True] == 1.0
    assert rows["single_source-easy", False] == 1.0
    curve = json.loads((tmp_path / "generations" / "before.json").read_text())["test"]
    assert [point["generation"] for point in curve] == [0, 1, 2]
    assert curve[2]["reward"] > curve[1]["reward"]
    assert (tmp_path / "banks" / "before_test.jsonl").is_file()
    assert {request.sampling.temperature for request, _ in engine.answered} == {0.4}


def test_seed_skills_by_family(player):
    player, _ = player
    by_family = {task.family: player.seed_skill(task).name for task in TASKS["train"]}
    assert by_family["multi_source-hard"] == "multi-source-hard"
    assert by_family["single_source-easy"] == SEED_SKILL.name
