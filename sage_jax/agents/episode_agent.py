"""Plays Skill-R1's rollouts where a task is an episode of actions and not a question with tools: ALFWorld, WebShop, ...

The task LLM is then a frozen policy of this project: a `Player` on an engine that nobody updates. The skill is shown to
it as a bank of one.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from sage_jax.agents.episode import EpisodePlan, Player
from sage_jax.agents.gathering import Stragglers, map_some
from sage_jax.agents.tool_agent import TaskRollout
from sage_jax.skills import GENERAL, SkillBank
from sage_jax.skills.folders import SkillFile
from sage_jax.types import RewardResult, Status, Task, Trajectory


class EpisodeAgent:
    """Plays (task, skill, seed) plans with a frozen policy (the interface of `tool_agent.ToolAgent`)."""

    def __init__(self, player: Player, *, temperature: float = 1.0):
        """Takes a player whose engine is never given new weights."""
        self._player, self._temperature = player, temperature

    async def play_all(
        self,
        plans: Sequence[tuple[Task, SkillFile | None, int]],
        *,
        concurrency: int,
        straggler_factor: float = 0.0,
    ) -> list[TaskRollout]:
        """Plays the plans, at most `concurrency` at a time, in the order given (`straggler_factor`: `Stragglers`)."""
        stragglers = Stragglers(straggler_factor, len(plans))
        return await map_some(lambda plan: self.play(*plan, stragglers), plans, concurrency=concurrency)

    async def play(
        self, task: Task, skill: SkillFile | None, seed: int, stragglers: Stragglers | None = None
    ) -> TaskRollout:
        """Plays one rollout; infrastructure failures become its status."""
        plan = EpisodePlan(
            task, "task-llm", seed, bank=None if skill is None else _bank(skill), temperature=self._temperature
        )
        return _rollout(await self._player.play(plan, stragglers))


def _bank(skill: SkillFile) -> SkillBank:
    return SkillBank().add(category=GENERAL, title=skill.name, principle=skill.body)


def _rollout(trajectory: Trajectory) -> TaskRollout:
    """Returns what the editor is told of an episode: solved or not, the last action, and how its actions were taken."""
    acts = [turn.info for turn in trajectory.turns if turn.stream == "act"]
    outcomes = collections.Counter(flag for act in acts for flag in act["flags"] or ["ok"])
    status, info = trajectory.reward.status, trajectory.info
    value = float(info["success"]) if status.has_reward else None
    told = {
        "success": info["success"],
        "score": info["score"],
        "steps": info["steps"],
        "tokens": info["tokens"],
        "cost": 0.0,
        "outcomes": sorted(outcomes.elements()),
        "ended_by": info["error"] or ("steps" if status is Status.TRUNCATED else "end"),
    }
    messages = tuple({"role": "assistant", "content": turn.info["text"]} for turn in trajectory.turns)
    last = str(acts[-1]["action"] or "") if acts else ""
    return TaskRollout(trajectory.task, RewardResult(value, status), last, messages, told)
