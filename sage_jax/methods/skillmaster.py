"""SkillMaster (arXiv 2605.08693): act, review the episode with one skill edit, pay the edit by what it does to probes.

    play groups under bank B, each episode followed by one review turn
    read the reviews: tool call -> edited bank B'
    probes: the same tasks and seeds under B and under B'; U = mean change of score + c * sign count
    R_skill = U + shaping of the call;   A_act = z(R_env), A_skill = gamma * z(R_skill), apart for each stream
    the edits that are accepted enter the bank for the next round

Deviation: the released code plays both arms of every edit; here each (probe, bank, policy) is played once (the arms of
different edits share B, identical edits share B'), with common random numbers for the arms.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np

from sage_jax.agents.episode import EpisodePlan, Player
from sage_jax.agents.parsing import ReviewParse, parse_review
from sage_jax.methods.grpo import Round, assign_advantages, plan_groups, rollout_metrics, with_review_reward
from sage_jax.methods.outcomes import means, require_round
from sage_jax.metrics.names import REVIEW_OUTCOMES
from sage_jax.rewards import (
    NO_EDIT,
    ProbeCache,
    ProbeRequest,
    ReviewShaping,
    UtilityConfig,
    assemble,
    plan_probes,
    probe_score,
    review_reward,
    select_probes,
)
from sage_jax.rollout.engine import LENGTH
from sage_jax.settings import RunSettings
from sage_jax.skills import EditKind, EditOutcome, Provenance, SkillBank, apply_edit
from sage_jax.skills.skill import normalise_words
from sage_jax.types import RewardResult, Task, Trajectory


@dataclasses.dataclass(frozen=True)
class Review:
    """One episode's review: which trajectory, its task family, what was written, what it did to the bank shown."""

    index: int
    family: str
    parse: ReviewParse
    outcome: EditOutcome
    provenance: Provenance


async def play_round(
    player: Player,
    settings: RunSettings,
    tasks: Sequence[Task],
    train_tasks: Sequence[Task],
    bank: SkillBank,
    number: int,
) -> Round:
    """Plays one round of SkillMaster (arguments and errors as in grpo.play_round; probes come from `train_tasks`)."""
    plans = plan_groups(settings, tasks, bank, number, review=True)
    trajectories = await player.play_all(
        plans, concurrency=settings.agent.concurrency, straggler_factor=settings.agent.straggler_factor
    )
    require_round(trajectories, settings, number)
    metrics, begun = rollout_metrics(trajectories), time.monotonic()
    reviews = read_reviews(trajectories, bank, number)
    utilities: Mapping[int, RewardResult] = {}
    if settings.skills.utility:
        utilities, probe_metrics = await measure_utilities(
            player, settings, trajectories, reviews, train_tasks, bank, number
        )
        metrics |= probe_metrics
    trajectories = reward_reviews(trajectories, reviews, utilities)
    trajectories, advantage_metrics = assign_advantages(trajectories, settings)
    metrics |= advantage_metrics | review_metrics(trajectories, reviews, utilities)
    if settings.skills.mutate == "train":
        bank = accept_edits(bank, reviews, utilities, settings.skills.accept)
    metrics |= {"bank/size": float(len(bank)), "bank/version": float(bank.version)}
    metrics["time/reward"] = time.monotonic() - begun
    return Round(tuple(trajectories), bank, metrics)


def read_reviews(trajectories: Sequence[Trajectory], bank: SkillBank, number: int) -> list[Review]:
    """Reads the review turn of every episode that has one, against the bank the episode was shown."""
    reviews = []
    for index, trajectory in enumerate(trajectories):
        if not trajectory.turns or trajectory.turns[-1].stream != "review":
            continue
        turn = trajectory.turns[-1]
        parse = parse_review(turn.info["text"], truncated=turn.finish_reason == LENGTH)
        provenance = Provenance(task_id=trajectory.task.id, policy_version=turn.weight_version, step=number)
        outcome = apply_edit(bank, parse.call, task_category=trajectory.task.family, provenance=provenance)
        reviews.append(Review(index, trajectory.task.family, parse, outcome, provenance))
    return reviews


async def measure_utilities(
    player: Player,
    settings: RunSettings,
    trajectories: Sequence[Trajectory],
    reviews: Sequence[Review],
    train_tasks: Sequence[Task],
    bank: SkillBank,
    number: int,
) -> tuple[dict[int, RewardResult], dict[str, float]]:
    """Plays the probes of all edits. Returns utility by trajectory index, and metrics."""
    edits = [review for review in reviews if review.outcome.kind.changes_bank]
    banks = {bank.fingerprint: bank} | {review.outcome.bank.fingerprint: review.outcome.bank for review in edits}
    config = UtilityConfig(settings.skills.probes, settings.skills.sign_weight, settings.skills.clip_utility)
    requests = [
        ProbeRequest(
            name=str(review.index),
            edited=review.outcome.bank.fingerprint,
            probes=select_probes(
                trajectories[review.index].task,
                train_tasks,
                k=config.probes,
                seed=settings.seed,
                by_topic=settings.skills.probe_topic,
            ),
        )
        for review in edits
    ]
    cache = ProbeCache()
    plan = plan_probes(
        requests, base=bank.fingerprint, policy_version=number, step=number, seed=settings.seed, cache=cache
    )
    plans = [
        EpisodePlan(
            episode.task, f"probe/{number}", episode.key.seed, banks[episode.key.bank],
            temperature=settings.agent.temperature,
        )
        for episode in plan.episodes
    ]  # fmt: skip
    played = await player.play_all(
        plans, concurrency=settings.agent.concurrency, straggler_factor=settings.agent.straggler_factor
    )
    for episode, trajectory in zip(plan.episodes, played, strict=True):
        score = probe_score(
            success=trajectory.info["success"],
            steps=trajectory.info["steps"],
            max_steps=settings.agent.max_steps,
            status=trajectory.reward.status,
        )
        cache.put(episode.key, score)
    utilities = {int(name): value for name, value in assemble(plan, cache, config).items()}
    known = [value.value for value in utilities.values() if value.value is not None]
    metrics = {
        "utility/edits": len(edits),
        **means({"utility/mean": known, "utility/positive_share": [value > 0 for value in known]}),
        "utility/probe_requested": plan.requested,
        "utility/probe_run": plan.run,
        "utility/probe_saved": plan.saved,
    }
    return utilities, {name: float(value) for name, value in metrics.items()}


def reward_reviews(
    trajectories: Sequence[Trajectory],
    reviews: Sequence[Review],
    utilities: Mapping[int, RewardResult],
    shaping: ReviewShaping = ReviewShaping(),  # noqa: B008  (frozen)
) -> list[Trajectory]:
    """Gives every review turn R_skill = utility + shaping; an edit that was not measured has utility 0."""
    rewarded = list(trajectories)
    for review in reviews:
        utility = utilities.get(review.index, NO_EDIT)
        reward = review_reward(review.outcome, review.parse.flags, utility=utility, config=shaping)
        rewarded[review.index] = with_review_reward(
            trajectories[review.index],
            reward,
            outcome=review.outcome.kind.value,
            utility=utility.value,
            flags=sorted(review.parse.flags),
        )
    return rewarded


def accept_edits(
    bank: SkillBank,
    reviews: Sequence[Review],
    utilities: Mapping[int, RewardResult],
    accept: str,
) -> SkillBank:
    """Applies the round's edits to the bank, best worth first.

    The worth of an edit is its utility, averaged over the reviews that made the very same edit. An edit that has become
    a duplicate changes nothing, nor does an update of a skill that a better edit has updated: its utility was measured
    against the words that are gone.

    Args:
      bank: as the round's episodes saw it.
      reviews: of the round.
      utilities: by trajectory index.
      accept: "always"; "utility>0" for edits that are worth more than zero; or "best" for the one that is worth most of
        these. Where skills are shown together, all others were measured without it. Edits of one wording are then the
        same edit, whatever their category.
    """
    edits = [review for review in reviews if review.outcome.kind.changes_bank]
    worth = _worths(edits, utilities, by_words=accept == "best")
    updated: set[str] = set()
    for review in sorted(edits, key=lambda review: (-worth[review.index], review.index)):
        if accept != "always" and worth[review.index] <= 0:
            break
        if review.outcome.skill_id in updated:
            continue
        if review.outcome.kind is EditKind.UPDATED:
            updated.add(review.outcome.skill_id)
        value = worth[review.index]
        provenance = dataclasses.replace(review.provenance, utility=value if np.isfinite(value) else None)
        bank = apply_edit(bank, review.parse.call, task_category=review.family, provenance=provenance).bank
        if accept == "best":
            break
    return bank


def _worths(edits: Sequence[Review], utilities: Mapping[int, RewardResult], *, by_words: bool) -> dict[int, float]:
    """Returns, by trajectory index, the mean utility of the reviews that made the same edit; -inf without a measure."""
    same = {review.index: _words(review) if by_words else (review.outcome.bank.fingerprint,) for review in edits}
    measured: dict[tuple[str, ...], list[float]] = {}
    for review in edits:
        value = utilities.get(review.index, NO_EDIT).value
        if review.index in utilities and value is not None:
            measured.setdefault(same[review.index], []).append(value)
    return {index: float(np.mean(measured.get(edit, [-np.inf]))) for index, edit in same.items()}


def _words(review: Review) -> tuple[str, ...]:
    """Returns what an edit says and, of an update, about which skill: all of it but the category."""
    outcome = review.outcome
    skill = outcome.bank.get(outcome.skill_id)
    target = outcome.skill_id if outcome.kind is EditKind.UPDATED else ""
    return target, normalise_words(skill.title), normalise_words(skill.principle)


def review_metrics(
    trajectories: Sequence[Trajectory], reviews: Sequence[Review], utilities: Mapping[int, RewardResult]
) -> dict[str, float]:
    """Returns shares of outcomes and the mean reward of the round's review turns."""
    if not reviews:
        return {"review/turns": 0.0}
    kinds = [review.outcome.kind for review in reviews]
    rewards = [trajectories[review.index].turns[-1].reward for review in reviews]
    known = [reward.value for reward in rewards if reward is not None and reward.value is not None]
    valid = (EditKind.ADDED, EditKind.UPDATED, EditKind.KEPT, EditKind.DUPLICATE)
    shares = {f"review/{name}": kinds.count(EditKind(name)) / len(kinds) for name in REVIEW_OUTCOMES}
    return {
        "review/turns": float(len(reviews)),
        "review/valid": sum(kind in valid for kind in kinds) / len(kinds),
        **means({"review/reward": known}),
        **shares,
    }
