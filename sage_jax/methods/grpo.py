"""Plain GRPO (arXiv 2402.03300): n rollouts of each task, one group each, rewards normalised inside the group.

    plan_groups -> Player.play_all -> assign_advantages -> update

SkillMaster (skillmaster.py) is this plus review turns, probes and a bank.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np

from sage_jax.agents.episode import EpisodePlan, Player
from sage_jax.losses import stream_advantages
from sage_jax.methods.credit import paired_rewards, step_credit
from sage_jax.methods.outcomes import means, require_round
from sage_jax.seeding import derive_seed
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.types import RewardResult, Task, Trajectory


@dataclasses.dataclass(frozen=True)
class Round:
    """What a method makes of one round.

    Attributes:
      trajectories: with rewards and advantages; a turn without an advantage takes no part in the update.
      bank: for the next round.
      metrics: named as in metrics/names.py.
    """

    trajectories: tuple[Trajectory, ...]
    bank: SkillBank
    metrics: Mapping[str, float]


async def play_round(
    player: Player,
    settings: RunSettings,
    tasks: Sequence[Task],
    train_tasks: Sequence[Task],
    bank: SkillBank,
    number: int,
) -> Round:
    """Plays one round of GRPO; `train_tasks` and the edits of skills are SkillMaster's and not used here.

    Args:
      player: plays episodes on the current weights.
      settings: the run's.
      tasks: the round's tasks, one group each.
      train_tasks: all training tasks.
      bank: shown to the agent, never changed.
      number: of the round, from 0.

    Raises:
      EngineError: no episode came to an outcome.
    """
    plans = plan_groups(settings, tasks, bank, number, review=False)
    trajectories = await player.play_all(
        plans, concurrency=settings.agent.concurrency, straggler_factor=settings.agent.straggler_factor
    )
    require_round(trajectories, settings, number)
    begun = time.monotonic()
    trajectories, metrics = assign_advantages(trajectories, settings)
    metrics |= rollout_metrics(trajectories) | {"time/reward": time.monotonic() - begun}
    return Round(tuple(trajectories), bank, metrics)


def plan_groups(
    settings: RunSettings, tasks: Sequence[Task], bank: SkillBank, number: int, *, review: bool
) -> list[EpisodePlan]:
    """Returns `group_size` plans for each task; rollouts of a group differ in their seed only.

    With `paired_share` the first of a group are shown no skills (D2Skill).

    A task that comes again in the same round (fewer tasks than a round takes, or the end of a pass over them) is
    another group with other seeds.
    """
    plans, times = [], collections.Counter[str]()
    plain = round(settings.credit.paired_share * settings.rl.group_size)
    for task in tasks:
        key = f"{task.id}#{times[task.id]}" if times[task.id] else task.id
        times[task.id] += 1
        for member in range(settings.rl.group_size):
            plans.append(
                EpisodePlan(
                    task=task,
                    group=f"{number}/{key}",
                    seed=derive_seed(settings.seed, "rollout", number, key, member),
                    bank=None if member < plain else bank,
                    review=review,
                    temperature=settings.agent.temperature,
                )
            )
    return plans


def assign_advantages(
    trajectories: Sequence[Trajectory], settings: RunSettings
) -> tuple[list[Trajectory], dict[str, float]]:
    """Fills every turn's advantage: normalised inside (group, stream), review turns scaled by gamma.

    Paired credit (D2Skill) joins the rewards of act turns before that, and step-level advantages (GiGPO) join theirs
    after it; both are off by default.

    Turns without a reward, and turns of groups whose rewards are all equal, get None and leave the loss.
    """
    trajectories, paired_metrics = paired_rewards(trajectories, settings)
    turns = [(i, turn) for i, trajectory in enumerate(trajectories) for turn in trajectory.turns]
    rewards = [turn.reward for _, turn in turns]
    valid = np.array([reward is not None and reward.value is not None for reward in rewards], bool)
    advantages, aux = stream_advantages(
        np.array([reward.value if ok else 0.0 for reward, ok in zip(rewards, valid, strict=True)], np.float64),
        np.array([trajectories[i].group for i, _ in turns]),
        np.array([turn.stream for _, turn in turns]),
        np.array([i for i, _ in turns]),
        valid,
        scales={"review": settings.rl.gamma},
        joint=settings.rl.joint,
        group_stats=settings.rl.group_stats,
        kind=settings.rl.advantage,
        eps=settings.rl.advantage_eps,
    )
    steps, step_metrics = step_credit(trajectories, settings)
    advantages, signals = advantages + steps, aux["has_signal"] | (steps != 0)
    values = iter(float(a) if signal else None for a, signal in zip(advantages, signals & valid, strict=True))
    filled = [
        dataclasses.replace(
            trajectory, turns=tuple(dataclasses.replace(turn, advantage=next(values)) for turn in trajectory.turns)
        )
        for trajectory in trajectories
    ]
    metrics = {
        "groups/total": aux["groups"],
        "groups/no_spread": aux["groups_without_spread"],
        "groups/invalid": aux["groups_empty"],
    }
    for stream in ("act", "review"):
        chosen = [a for (_, turn), a, ok in zip(turns, advantages, valid, strict=True) if ok and turn.stream == stream]
        if chosen:
            metrics[f"advantage/{stream}_std"] = float(np.std(chosen))
    metrics |= paired_metrics | step_metrics
    return filled, {name: float(value) for name, value in metrics.items()}


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns the metrics of a round's rollouts; what nothing is known of is left out."""
    rewarded = [t for t in trajectories if t.reward.value is not None]
    acts = [turn for t in trajectories for turn in t.turns if turn.stream == "act"]
    statuses = [t.reward.status for t in trajectories]
    rewards = [t.reward.value for t in rewarded]
    metrics = means(
        {
            "reward/mean": rewards,
            "reward/success": [float(t.info["success"]) for t in rewarded],
            "reward/score": [float(t.info["score"]) for t in rewarded],
            "reward/invalid_actions": [float("not_admissible" in turn.info.get("flags", ())) for turn in acts],
            "episode/steps": [float(t.info["steps"]) for t in rewarded],
            "episode/truncated": [float(status.value == "truncated") for status in statuses],
        }
    )
    metrics |= {"reward/std": float(np.std(rewards))} if rewards else {}
    metrics["tokens/generated"] = float(sum(t.info["tokens"] for t in trajectories))
    unread = sum("review_status" in t.info for t in trajectories)
    metrics |= {"review/failed": float(unread)} if unread else {}
    return metrics | {f"status/{status.value}": float(statuses.count(status)) for status in set(statuses)}


def with_review_reward(trajectory: Trajectory, reward: RewardResult, **info: object) -> Trajectory:
    """Returns the trajectory with the reward of its review turn, which is its last."""
    *acts, review = trajectory.turns
    review = dataclasses.replace(review, reward=reward, info={**review.info, **info})
    return dataclasses.replace(trajectory, turns=(*acts, review))
