"""A frozen policy as the task LLM: what it is shown, and what the editor is told of its episodes."""

import asyncio
import dataclasses

import pytest

from sage_jax.agents.editor import Attempt, render_history
from sage_jax.agents.episode_agent import EpisodeAgent
from sage_jax.skills.folders import SkillFile
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

TASK = Task("shop/1", "webshop", "train", "fashion")
SKILL = SkillFile("search-first", "when shopping", "search with options")


def trajectory(plan, *flags, status=Status.OK, success=True):
    turns = tuple(
        Turn("act", (1,), (2, 3), (0.0, 0.0), True, info={"text": f"t{n}", "action": f"a{n}", "flags": list(own)})
        for n, own in enumerate(flags)
    )
    value = 10.0 * success if status.has_reward else None
    info = {"success": success, "score": 0.5, "steps": len(turns), "tokens": 2 * len(turns), "error": ""}
    return Trajectory(plan.task, plan.group, plan.seed, turns, RewardResult(value, status), info)


class Player:
    """Plays nothing: two acts, the first of which was not admissible."""

    def __init__(self, **ending):
        self.plans, self.ending, self.running, self.most = [], ending, 0, 0

    async def play(self, plan, stragglers=None):
        self.plans.append(plan)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return trajectory(plan, ("not_admissible",), (), **self.ending)


def play(player, *plans, concurrency=4):
    return asyncio.run(EpisodeAgent(player, temperature=0.7).play_all(plans, concurrency=concurrency))


def test_the_skill_is_all_that_the_policy_is_shown():
    player = Player()
    play(player, (TASK, SKILL, 5), (TASK, None, 6))
    first, second = player.plans
    assert [(skill.title, skill.principle, skill.category) for skill in first.bank] == [
        ("search-first", "search with options", "general")
    ]
    assert (first.seed, first.temperature, first.review) == (5, 0.7, False)
    assert (second.bank, second.seed) == (None, 6)


def test_what_the_editor_is_told():
    (rollout,) = play(Player(), (TASK, SKILL, 5))
    assert rollout.reward == RewardResult(1.0)  # solved, whatever a solved task is paid elsewhere
    assert (rollout.answer, rollout.info["outcomes"]) == ("a1", ["not_admissible", "ok"])
    assert (rollout.info["steps"], rollout.info["tokens"], rollout.info["ended_by"]) == (2, 4, "end")
    text = render_history([Attempt(1, SKILL, (rollout,))], budget=200, length=lambda text: len(text.split()))
    assert '- generation 1, rollout 1: solved, answered "a1"; calls: 1 not_admissible, 1 ok' in text


@pytest.mark.parametrize(
    ("ending", "value"),
    [
        ({"status": Status.TRUNCATED, "success": False}, 0.0),
        ({"success": False}, 0.0),
        ({"status": Status.ENV_ERROR, "success": False}, None),
    ],
)
def test_how_an_episode_ends(ending, value):
    (rollout,) = play(Player(**ending), (TASK, SKILL, 5))
    assert rollout.reward.value == value
    assert rollout.reward.status is ending.get("status", Status.OK)
    assert rollout.info["ended_by"] == ("steps" if ending.get("status") is Status.TRUNCATED else "end")


def test_an_episode_without_a_turn_has_no_answer():
    class Silent(Player):
        async def play(self, plan, stragglers=None):
            lost = trajectory(plan, status=Status.ENGINE_ERROR, success=False)
            return dataclasses.replace(lost, info={**lost.info, "error": "the engine is gone"})

    (rollout,) = play(Silent(), (TASK, None, 5))
    assert (rollout.answer, rollout.info["ended_by"], rollout.info["outcomes"]) == ("", "the engine is gone", [])


def test_no_more_episodes_at_one_time_than_asked_for():
    player = Player()
    rollouts = play(player, *((TASK, None, seed) for seed in range(7)), concurrency=2)
    assert player.most == 2
    assert len(rollouts) == 7
