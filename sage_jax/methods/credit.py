"""Finer credit for any method that groups rollouts: paired with and without skills, and step by step.

Glue between trajectories and the pure functions of `losses`: `grpo.assign_advantages` calls both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from sage_jax.losses import paired_credit, step_advantages
from sage_jax.settings import RunSettings
from sage_jax.types import Trajectory, Turn


def paired_rewards(
    trajectories: Sequence[Trajectory], settings: RunSettings
) -> tuple[list[Trajectory], dict[str, float]]:
    """Returns trajectories whose act turns have the paired credit in their reward, and the gap's metrics.

    A rollout counts as shown skills when it was shown one: with an empty bank there is no gap to learn from.
    """
    own = settings.credit
    if not own.paired_share:
        return list(trajectories), {}
    valid = np.array([t.reward.value is not None for t in trajectories], bool)
    credit, aux = paired_credit(
        np.array([float(t.info["success"]) for t in trajectories]),
        np.array([t.group for t in trajectories]),
        np.array([bool(t.info.get("skills")) for t in trajectories], bool),
        valid,
        coef=own.paired_coef,
        to=own.paired_to,
    )
    paid = [
        dataclasses.replace(t, turns=tuple(_paid(turn, float(more)) for turn in t.turns)) if more else t
        for t, more in zip(trajectories, credit, strict=True)
    ]
    return paid, {"paired/gap": aux["gap"], "paired/groups": aux["groups_paired"]}


def _paid(turn: Turn, more: float) -> Turn:
    """Returns an act turn with `more` in its reward; other turns as they are."""
    reward = turn.reward
    if turn.stream != "act" or reward is None or reward.value is None:
        return turn
    parts = {**reward.parts, "paired": more}
    return dataclasses.replace(turn, reward=dataclasses.replace(reward, value=reward.value + more, parts=parts))


def step_credit(trajectories: Sequence[Trajectory], settings: RunSettings) -> tuple[np.ndarray, dict[str, float]]:
    """Returns what GiGPO adds to the advantage of each turn, in order: omega * A_step; 0 for turns that are no acts.

    The state is the observation that an act answered. Every act turn carries its episode's outcome; here a turn's own
    reward is its shaping alone, and the last act's is shaping and outcome.
    """
    own = settings.credit
    turns = [(i, turn) for i, trajectory in enumerate(trajectories) for turn in trajectory.turns]
    added = np.zeros(len(turns))
    places = [place for place, (_, turn) in enumerate(turns) if turn.stream == "act"]
    if not own.step_weight or not places:
        return added, {}
    acts = [turns[place] for place in places]
    ends = [n + 1 == len(acts) or acts[n + 1][0] != i for n, (i, _) in enumerate(acts)]
    rewards = [turn.reward for _, turn in acts]
    known = [reward is not None and reward.value is not None for reward in rewards]
    outcome = [trajectories[i].reward.value or 0.0 for i, _ in acts]
    steps, aux = step_advantages(
        np.array(
            [
                (reward.value if end else reward.value - won) if ok else 0.0
                for reward, won, end, ok in zip(rewards, outcome, ends, known, strict=True)
            ]
        ),
        np.array([trajectories[i].group for i, _ in acts]),
        np.array([i for i, _ in acts]),
        np.array([turn.info.get("observation", "") for _, turn in acts]),
        np.array(known, bool),
        discount=own.step_discount,
        kind=settings.rl.advantage,
        eps=settings.rl.advantage_eps,
    )
    added[places] = own.step_weight * np.nan_to_num(steps)
    compared = 1.0 - aux["groups_of_one"] / max(len(acts) - aux["samples_invalid"], 1)
    return added, {"advantage/step_std": float(np.std(added[places])), "groups/step_share": compared}
