"""Chains of tasks (SAGE's Sequential Rollout, arXiv 2512.17102): drawn, played with a library of their own, and paid.

A rollout of a chain plays its tasks in order. Its library is empty before the first task; each later task sees exactly
what this rollout learned on the earlier ones. What a library holds (programs, a bank of texts) is behind `Library`:
nothing here knows it.

    make_chains -> play_chains -> pay_chain -> advantages inside (chain, position)
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np

from sage_jax.agents.episode import EpisodePlan, Player
from sage_jax.agents.gathering import Stragglers
from sage_jax.errors import ConfigError
from sage_jax.rewards import SageRewardConfig, TaskOutcome, chain_group, chain_rewards
from sage_jax.seeding import derive_seed, numpy_rng
from sage_jax.skills.program_retrieval import hashed_embedding
from sage_jax.types import Task, Trajectory

KINDS = ("scenario", "family", "similarity")
NEIGHBOURS = 8  # tasks among which a chain by similarity draws


class Library(Protocol):
    """The skills of one rollout of a chain. Immutable: what a task teaches gives a new one."""

    def __len__(self) -> int:
        """The number of skills."""

    def show(self, plan: EpisodePlan) -> EpisodePlan:
        """Returns the plan of the next task with the skills that its episode is given."""

    def learn(self, trajectory: Trajectory, position: int) -> Self:
        """Returns the library after the task at `position` of the chain."""

    def used(self, trajectory: Trajectory) -> frozenset[int]:
        """Returns the positions whose skills an episode used that was planned with this library."""


@dataclasses.dataclass(frozen=True)
class Chain:
    """Tasks to be played in order by one rollout.

    Attributes:
      key: unique among the chains of a round: rollouts of one key are compared.
      tasks: in order.
    """

    key: str
    tasks: tuple[Task, ...]


@dataclasses.dataclass(frozen=True)
class ChainRollout:
    """One rollout of a chain.

    Attributes:
      chain: what was played.
      trajectories: one a task, in order; fewer than tasks when the infrastructure failed in training.
      used: for each, the positions whose skills it used.
      library: at the end.
    """

    chain: Chain
    trajectories: tuple[Trajectory, ...]
    used: tuple[frozenset[int], ...]
    library: Library


def link_of(task: Task, by: str) -> str:
    """Returns what the tasks of a chain have in common: their scenario, or their family.

    Raises:
      ConfigError: the task names no scenario.
    """
    if by == "scenario":
        if "scenario" not in task.payload:
            raise ConfigError(f"chain_by='scenario': task {task.id} of {task.benchmark} has none; use 'family'")
        return str(task.payload["scenario"])
    return task.family


def make_chains(
    anchors: Sequence[Task], tasks: Sequence[Task], *, length: int, by: str, seed: int, number: int
) -> list[Chain]:
    """Returns a chain for each anchor: the anchor first, then tasks that are drawn without repetition.

    Args:
      anchors: first tasks; one that comes twice starts two chains, which are never compared.
      tasks: what the others are drawn from.
      length: tasks of a chain.
      by: "scenario" or "family", the others share it with the anchor; "similarity", they are drawn from the tasks whose
        instructions are closest to the anchor's, whatever their scenario.
      seed: of the run.
      number: of the round.

    Raises:
      ConfigError: too few tasks go with an anchor, or `by` does not fit the benchmark.
    """
    chains = []
    near = _Near(tasks) if by == "similarity" else None
    linked: dict[str, list[Task]] = {}
    for task in tasks if near is None else ():
        linked.setdefault(link_of(task, by), []).append(task)
    for place, anchor in enumerate(anchors):
        if near is not None:
            others = near.of(anchor, max(NEIGHBOURS, length - 1))
        else:
            others = [task for task in linked.get(link_of(anchor, by), ()) if task.id != anchor.id]
        if len(others) < length - 1:
            raise ConfigError(
                f"chain_length={length}: only {len(others)} training tasks go with {anchor.id} by {by}; "
                "lower it, or have more tasks"
            )
        order = numpy_rng(seed, "chain", number, place).permutation(len(others))[: length - 1]
        chains.append(Chain(f"{anchor.id}~{place}", (anchor, *(others[i] for i in order))))
    return chains


class _Near:
    """Tasks by the likeness of their instructions."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._vectors = hashed_embedding([_instruction(task) for task in tasks])

    def of(self, anchor: Task, count: int) -> list[Task]:
        scores = self._vectors @ hashed_embedding([_instruction(anchor)])[0]
        order = np.argsort(-np.round(scores, 5), kind="stable")
        return [self._tasks[i] for i in order if self._tasks[i].id != anchor.id][:count]


def _instruction(task: Task) -> str:
    if "instruction" not in task.payload:
        raise ConfigError(f"chain_by='similarity': task {task.id} of {task.benchmark} has no instruction to compare")
    return str(task.payload["instruction"])


async def play_chains(
    player: Player,
    chains: Sequence[Chain],
    library: Callable[[], Library],
    *,
    members: int,
    group: str,
    seed: int,
    temperature: float,
    concurrency: int,
    whole: bool = False,
    straggler_factor: float = 0.0,
    done: Callable[[Trajectory], None] | None = None,
) -> list[ChainRollout]:
    """Plays every chain `members` times, at most `concurrency` rollouts at a time; a chain's rollouts lie together.

    Args:
      player: plays episodes.
      chains: to play.
      library: makes the empty library of a rollout.
      members: rollouts of a chain.
      group: what the group names begin with.
      seed: of all rollouts.
      temperature: of sampling.
      concurrency: rollouts at one time.
      whole: play on after a task that the infrastructure lost. In training such a chain ends: its later tasks lack
        what the lost one would have taught, and would be blamed for it.
      straggler_factor: see `gathering.Stragglers`, of all tasks of all rollouts; 0 waits for all.
      done: called after each task.
    """
    gate, play = asyncio.Semaphore(concurrency), player.play
    if straggler_factor:
        count = members * sum(len(chain.tasks) for chain in chains)
        play = functools.partial(play, stragglers=Stragglers(straggler_factor, count))

    async def one(chain: Chain, member: int) -> ChainRollout:
        shelf, trajectories, used = library(), [], []
        async with gate:
            for position, task in enumerate(chain.tasks):
                plan = EpisodePlan(
                    task=task,
                    group=f"{group}/{chain_group(chain.key, position)}",
                    seed=derive_seed(seed, "chain", chain.key, member, position),
                    temperature=temperature,
                )
                trajectory = await play(shelf.show(plan))
                trajectories.append(trajectory)
                used.append(shelf.used(trajectory))
                if done is not None:
                    done(trajectory)
                if trajectory.reward.status.has_reward:
                    shelf = shelf.learn(trajectory, position)
                elif not whole:
                    break
        return ChainRollout(chain, tuple(trajectories), tuple(used), shelf)

    return list(await asyncio.gather(*(one(chain, member) for chain in chains for member in range(members))))


def pay_chain(rollout: ChainRollout, config: SageRewardConfig) -> list[Trajectory]:
    """Returns the trajectories of a rollout, each with its own reward of the chain on all of its turns."""
    outcomes = [
        TaskOutcome(
            won=bool(trajectory.info["success"]),
            score=float(trajectory.info["score"]),
            status=trajectory.reward.status,
            no_code=bool(trajectory.info["ended_by_turn"]),
            used=used,
        )
        for trajectory, used in zip(rollout.trajectories, rollout.used, strict=True)
    ]
    rewards = chain_rewards(outcomes, config)
    return [
        dataclasses.replace(
            trajectory,
            reward=reward,
            turns=tuple(dataclasses.replace(turn, reward=reward) for turn in trajectory.turns),
            info={**trajectory.info, "position": position, "used": sorted(rollout.used[position])},
        )
        for position, (trajectory, reward) in enumerate(zip(rollout.trajectories, rewards, strict=True))
    ]
