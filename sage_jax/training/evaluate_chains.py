"""Evaluation of tasks that come in scenarios: each scenario in order, skills carried over, every task exactly once.

TGC is the share of tasks solved, SGC the share of scenarios whose tasks were all solved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from sage_jax.agents.episode import Player
from sage_jax.methods.chains import Chain, ChainRollout, Library, link_of, play_chains
from sage_jax.methods.libraries import FixedBank, NoLibrary
from sage_jax.methods.outcomes import failures
from sage_jax.methods.sage import eval_library
from sage_jax.metrics.evaluation import EpisodeOutcome
from sage_jax.metrics.progress import show_progress
from sage_jax.seeding import derive_seed
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.types import Task, Trajectory


def has_scenarios(tasks: Mapping[str, Sequence[Task]]) -> bool:
    """Whether all tasks belong to scenarios."""
    return all("scenario" in task.payload for games in tasks.values() for task in games)


def scenario_chains(tasks: Sequence[Task], count: int) -> list[Chain]:
    """Returns the scenarios as chains, in the order of the tasks; of `count` tasks, the scenarios that fit whole.

    Of fewer tasks than there are, scenarios are taken evenly over the families. At least one is taken; 0 takes all.
    """
    scenarios: dict[str, list[Task]] = {}
    for task in tasks:
        scenarios.setdefault(link_of(task, "scenario"), []).append(task)
    chains = [Chain(key, tuple(found)) for key, found in scenarios.items()]
    if not count or count >= len(tasks):
        return chains
    queues: dict[str, list[int]] = {}
    for number, chain in enumerate(chains):
        queues.setdefault(chain.tasks[0].family, []).append(number)
    turns = max(len(queue) for queue in queues.values())
    order = [queue[turn] for turn in range(turns) for queue in queues.values() if turn < len(queue)]
    chosen, left = [order[0]], count - len(chains[order[0]].tasks)
    for number in order[1:]:
        left -= len(chains[number].tasks)
        if left < 0:
            break
        chosen.append(number)
    return [chains[number] for number in sorted(chosen)]


def family_chains(tasks: Sequence[Task], length: int) -> list[Chain]:
    """Returns the tasks of each family, in their order, as chains of `length`; the last of a family may be shorter."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.family, []).append(task)
    return [
        Chain(f"{family}~{start}", tuple(found[start : start + length]))
        for family, found in families.items()
        for start in range(0, len(found), length)
    ]


async def evaluate_chains(
    player: Player,
    settings: RunSettings,
    tasks: Mapping[str, Sequence[Task]],
    bank: SkillBank | None = None,
    *,
    chains: Mapping[str, Sequence[Chain]] | None = None,
) -> tuple[list[EpisodeOutcome], list[Trajectory]]:
    """Plays every task once without a library, and once with one: of its own with method sage, else the run's bank.

    The library is empty at the start of each scenario. A retrieval that looks beyond the scenario finds the skills of
    all earlier scenarios: then the whole split is one chain, and its tasks are played one after another.

    Args:
      player: plays on the weights to evaluate.
      settings: the run's.
      tasks: of each split.
      bank: skills of a run that has a bank.
      chains: how the tasks are chained; scenarios by default.
    """
    sage = settings.rl.method == "sage"
    makers: list[tuple[bool, Callable[[], Library]]] = [(False, NoLibrary)]
    if sage:
        makers.insert(0, (True, eval_library(settings)))
    elif bank:
        makers.insert(0, (True, functools.partial(FixedBank, bank)))
    count = settings.evaluation.eval_episodes
    chosen = chains or {split: scenario_chains(games, count) for split, games in tasks.items()}
    count = len(makers) * sum(len(chain.tasks) for chains in chosen.values() for chain in chains)
    outcomes: list[EpisodeOutcome] = []
    played: list[Trajectory] = []
    with show_progress("evaluation", count) as progress:
        programs = sage and settings.sage.skill_form == "programs"
        for split, parts in chosen.items():
            for retrieval, library in makers:
                beyond = retrieval and programs and settings.sage.program_retrieval != "scenario"
                whole = [Chain(split, tuple(task for chain in parts for task in chain.tasks))]
                rollouts = await play_chains(
                    player,
                    whole if beyond else parts,
                    library,
                    members=1,
                    group=f"eval/{split}/{'with' if retrieval else 'without'}",
                    seed=derive_seed(settings.evaluation.eval_seed, "eval", split),
                    temperature=settings.evaluation.eval_temperature,
                    concurrency=settings.agent.concurrency,
                    whole=True,
                    done=lambda trajectory: progress.advance(),
                )
                for rollout in rollouts:
                    outcomes += _outcomes(split, retrieval, rollout, sage)
                    played += rollout.trajectories
    return outcomes, played


def _outcomes(split: str, retrieval: bool, rollout: ChainRollout, sage: bool) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome(
            split=split,
            retrieval=retrieval,
            family=trajectory.task.family,
            success=None if trajectory.reward.value is None else bool(trajectory.info["success"]),
            steps=trajectory.info["steps"],
            tokens=trajectory.info["tokens"],
            score=trajectory.info["score"],
            scenario=str(trajectory.task.payload.get("scenario", "")),
            used=bool(used) if sage and (trajectory.info.get("programs") or trajectory.info.get("skills")) else None,
            library=len(rollout.library) if retrieval and sage else None,
            error=failures([trajectory])[0],
        )
        for trajectory, used in zip(rollout.trajectories, rollout.used, strict=True)
    ]
