"""Evaluation: every game exactly once, with and without retrieval, whatever the concurrency."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

from sage_jax.agents.episode import EpisodePlan, Player
from sage_jax.methods.outcomes import failures, require_outcome
from sage_jax.methods.skill_r1 import generation_curve, write_banks
from sage_jax.methods.skill_r1_player import SkillR1Player
from sage_jax.metrics.evaluation import EpisodeOutcome
from sage_jax.metrics.progress import show_progress
from sage_jax.seeding import derive_seed
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.training.evaluate_chains import evaluate_chains, family_chains, has_scenarios
from sage_jax.types import Task, Trajectory


def choose_games(tasks: Sequence[Task], count: int) -> list[Task]:
    """Returns `count` tasks, as evenly over the families as they allow, in order of id; 0 returns all of them."""
    if not count or count >= len(tasks):
        return list(tasks)
    queues: dict[str, list[Task]] = {}
    for task in tasks:
        queues.setdefault(task.family, []).append(task)
    chosen: list[Task] = []
    while len(chosen) < count:
        for queue in queues.values():
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
    return sorted(chosen, key=lambda task: task.id)


async def evaluate(
    player: Player, settings: RunSettings, tasks: Mapping[str, Sequence[Task]], bank: SkillBank
) -> tuple[list[EpisodeOutcome], list[Trajectory]]:
    """Plays every game once with the bank (if it has skills) and once without it; scenarios as `evaluate_chains` does.

    With method sage the tasks of a family are played in chains, each with a library that its own tasks write.

    The bank is never changed. Each episode's seed depends on its game alone, so the result does not depend on the
    order or the number of episodes at one time.

    Args:
      player: plays on the weights to evaluate.
      settings: the run's; `eval_temperature` and `eval_seed` decide the sampling.
      tasks: games of each split.
      bank: skills to retrieve from.
    """
    if has_scenarios(tasks):
        return await evaluate_chains(player, settings, tasks, bank)
    if settings.rl.method == "sage":  # texts: a bank of a chain's own, as in training
        count, length = settings.evaluation.eval_episodes, settings.sage.chain_length
        chains = {split: family_chains(choose_games(games, count), length) for split, games in tasks.items()}
        return await evaluate_chains(player, settings, tasks, chains=chains)
    plans, kinds = [], []
    for split, games in tasks.items():
        for retrieval in (True, False) if len(bank) else (False,):
            for task in choose_games(games, settings.evaluation.eval_episodes):
                plans.append(
                    EpisodePlan(
                        task=task,
                        group=f"eval/{split}/{'with' if retrieval else 'without'}/{task.id}",
                        seed=derive_seed(settings.evaluation.eval_seed, "eval", split, task.id),
                        bank=bank if retrieval else None,
                        temperature=settings.evaluation.eval_temperature,
                    )
                )
                kinds.append((split, retrieval))
    with show_progress("evaluation", len(plans)) as progress:
        played = await player.play_all(
            plans, concurrency=settings.agent.concurrency, done=lambda trajectory: progress.advance()
        )
    outcomes = [
        EpisodeOutcome(
            split=split,
            retrieval=retrieval,
            family=trajectory.task.family,
            success=None if trajectory.reward.value is None else bool(trajectory.info["success"]),
            steps=trajectory.info["steps"],
            tokens=trajectory.info["tokens"],
            score=trajectory.info["score"],
            error=failures([trajectory])[0],
        )
        for (split, retrieval), trajectory in zip(kinds, played, strict=True)
    ]
    return outcomes, played


def check_outcomes(outcomes: Sequence[EpisodeOutcome], what: str) -> bool:
    """Checks that an evaluation has outcomes; returns whether all its episodes have one.

    Raises:
      EngineError: none has one. The message has the first reason.
    """
    failed = [outcome.error if outcome.success is None else "" for outcome in outcomes]
    require_outcome(failed, what)
    return not any(failed)


async def evaluate_skills(
    player: SkillR1Player, settings: RunSettings, tasks: Mapping[str, Sequence[Task]], path: pathlib.Path
) -> list[EpisodeOutcome]:
    """Evaluates Skill-R1: every task without a skill, and with one evolved for it.

    For `eval/<tag>.json` it writes the curve over generations to `generations/<tag>.json` (mean reward, and share of
    instances solved by any rollout so far), and the banks to `banks/<tag>_<split>.jsonl`.
    """
    outcomes, curves, folder = [], {}, path.parents[1]
    for split, games in tasks.items():
        chosen = choose_games(games, settings.evaluation.eval_episodes)
        found, evolutions = await player.evaluate(split, chosen)
        outcomes += found
        options = dataclasses.replace(player.options(), rollouts=settings.skillr1.eval_rollouts)
        curve = generation_curve(evolutions, options)
        curves[split] = [{"generation": g, "reward": r, "solved": s} for g, (r, s) in enumerate(curve)]
        write_banks(folder / "banks" / f"{path.stem}_{split}.jsonl", evolutions)
    (folder / "generations").mkdir(exist_ok=True)
    (folder / "generations" / path.name).write_text(json.dumps(curves, indent=1) + "\n")
    return outcomes
