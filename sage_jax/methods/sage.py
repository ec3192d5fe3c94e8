"""SAGE (arXiv 2512.17102): Skill Augmented GRPO over chains of tasks.

    draw chains of N tasks; n rollouts of each, every one with an empty library of its own
    task after task: show the library, play, keep what the episode taught
    R1, R2 by `rewards.sage`: the outcome, and a bonus to both sides of a skill that was made and used
    A = R - mean over the n rollouts of the same chain at the same position; all of the task's model tokens get it

Chains and libraries are in `chains.py` and `libraries.py`; this file ties them to a run's settings.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

from sage_jax.agents.episode import Player
from sage_jax.methods.chains import ChainRollout, Library, make_chains, pay_chain, play_chains
from sage_jax.methods.grpo import Round, assign_advantages, rollout_metrics
from sage_jax.methods.libraries import CodeLibrary, TextLibrary
from sage_jax.methods.outcomes import means, require_round
from sage_jax.rewards import SageRewardConfig
from sage_jax.seeding import derive_seed
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.skills.program_retrieval import ProgramRetrieval, hashed_embedding, sentence_embedding
from sage_jax.types import Task, Trajectory


async def play_round(
    player: Player,
    settings: RunSettings,
    tasks: Sequence[Task],
    train_tasks: Sequence[Task],
    bank: SkillBank,
    number: int,
) -> Round:
    """Plays one round of SAGE (arguments as in grpo.play_round): `tasks` are the first of their chains.

    The run's bank is not used: every rollout of a chain begins with nothing.

    Raises:
      EngineError: no episode came to an outcome.
    """
    own = settings.sage
    chains = make_chains(
        tasks, train_tasks, length=own.chain_length, by=own.chain_by, seed=settings.seed, number=number
    )
    rollouts = await play_chains(
        player,
        chains,
        training_library(settings),
        members=settings.rl.group_size,
        group=str(number),
        seed=derive_seed(settings.seed, "sage", number),
        temperature=settings.agent.temperature,
        concurrency=settings.agent.concurrency,
        straggler_factor=settings.agent.straggler_factor,
    )
    require_round([one for rollout in rollouts for one in rollout.trajectories], settings, number)
    begun = time.monotonic()
    paid = [trajectory for rollout in rollouts for trajectory in pay_chain(rollout, reward_config(settings))]
    trajectories, metrics = assign_advantages(paid, settings)
    metrics |= rollout_metrics(trajectories) | chain_metrics(rollouts, trajectories)
    metrics["time/reward"] = time.monotonic() - begun
    return Round(tuple(trajectories), bank, metrics)


def reward_config(settings: RunSettings) -> SageRewardConfig:
    """Returns the amounts of the run."""
    own = settings.sage
    return SageRewardConfig(own.chain_reward, own.skill_bonus, own.no_code_reward, own.partial_reward)


def training_library(settings: RunSettings) -> Callable[[], Library]:
    """Returns what makes the empty library of a rollout; one of programs shows all it holds."""
    if settings.sage.skill_form == "texts":
        return TextLibrary
    return functools.partial(CodeLibrary, credit=settings.sage.skill_credit)


def eval_library(settings: RunSettings) -> Callable[[], Library]:
    """Returns what makes the empty library of an evaluation, which chooses what it shows.

    Raises:
      ConfigError: an embedding model is named whose package is missing.
    """
    own = settings.sage
    if own.skill_form == "texts":
        return TextLibrary
    retrieval = ProgramRetrieval(
        method=own.program_retrieval,
        ngram=own.retrieval_ngram,
        min_overlap=own.retrieval_overlap,
        min_similarity=own.retrieval_similarity,
        queries=own.retrieval_queries,
        programs=own.retrieval_programs,
    )
    embed = sentence_embedding(own.retrieval_model) if own.retrieval_model else hashed_embedding
    return functools.partial(CodeLibrary, credit=own.skill_credit, retrieval=retrieval, embed=embed)


def chain_metrics(rollouts: Sequence[ChainRollout], trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns what the round's chains made of their libraries; what nothing is known of is left out."""
    later = [
        (bool(used), bool(trajectory.info["success"]))
        for rollout in rollouts
        for trajectory, used in list(zip(rollout.trajectories, rollout.used, strict=True))[1:]
        if trajectory.reward.status.has_reward
    ]
    using = [won for used, won in later if used]
    parts = [trajectory.reward.parts for trajectory in trajectories if trajectory.reward.value is not None]
    finished = [rollout for rollout in rollouts if len(rollout.trajectories) == len(rollout.chain.tasks)]
    solved = [all(trajectory.info["success"] for trajectory in rollout.trajectories) for rollout in finished]
    metrics = means(
        {
            "chain/library_size": [len(rollout.library) for rollout in rollouts],
            "chain/solved": solved,
            "chain/use_rate": [used for used, _ in later],
            "chain/success_used": using,
            "chain/paid_made": ["made" in part for part in parts],
            "chain/paid_used": ["used" in part for part in parts],
            "chain/no_code": ["no_code" in part for part in parts],
        }
    )
    return metrics | {
        "chain/dropped": float(sum(len(trajectory.info.get("dropped", ())) for trajectory in trajectories))
    }
