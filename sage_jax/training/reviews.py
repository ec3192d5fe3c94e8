"""What a run taught its review turn: start and newest checkpoint review the same episodes, and probes tell the worth.

A run's own curves cannot tell that: its bank fills, and a fuller bank alone makes edits rarer and worth less.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from sage_jax.agents.episode import EpisodePlan
from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.methods.skillmaster import Review, measure_utilities, read_reviews
from sage_jax.metrics.progress import show_progress
from sage_jax.seeding import derive_seed
from sage_jax.settings import RunSettings
from sage_jax.training.cold_start import cold_start
from sage_jax.training.evaluate import choose_games
from sage_jax.training.modes import newest_checkpoint
from sage_jax.training.session import Session, open_session
from sage_jax.types import RewardResult, Trajectory


@dataclasses.dataclass(frozen=True)
class JudgedReview:
    """One review of one episode.

    Attributes:
      task: id of the episode's game.
      success: whether the episode was won.
      outcome: what the review did, an `EditKind` value.
      utility: U of the edit, 0 for a review that changes nothing; None when no probe of it was played to its end.
      text: what was written.
    """

    task: str
    success: bool
    outcome: str
    utility: float | None
    text: str


def judge_reviews(settings: RunSettings, *, probes: int) -> dict[str, list[JudgedReview]]:
    """Lets the start and the newest checkpoint review the same episodes; returns {"before": [...], "after": [...]}.

    The newest checkpoint plays each game of the evaluation splits once, with the skills of the key `bank` (none by
    default) and not those of the run, so that most objects have none yet. Each policy then reviews all of these
    episodes, and the newest checkpoint plays the probes of both, with the same seeds.

    Args:
      settings: of a run of method skillmaster that has a checkpoint.
      probes: training games an edit is measured on, each with it and without.

    Raises:
      ConfigError: the method has no review turns.
      CheckpointError: there is no checkpoint.
    """
    if settings.rl.method != "skillmaster":
        raise ConfigError(
            f"method={settings.rl.method!r} has no review turns; --mode=review needs method='skillmaster'"
        )
    folder = pathlib.Path(settings.run_dir)
    with open_session(settings, folder) as session:
        restored = newest_checkpoint(settings, session.model)
        if restored is None:
            raise CheckpointError(f"{folder} holds no checkpoint to judge: train first, or name its run_dir")
        trained, number = restored.arrays["state"].params, restored.step
        policies = {"before": cold_start(session)[0], "after": trained}
        judge = dataclasses.replace(
            settings,
            skills=dataclasses.replace(settings.skills, probes=probes),
            agent=dataclasses.replace(settings.agent, straggler_factor=0.0),
        )
        versions, concurrency = itertools.count(1), settings.agent.concurrency

        def play_on(params: Any) -> None:
            session.engine.update_weights(session.weights(params), next(versions))

        plans, judged = _plans(session), {}
        with show_progress("judging reviews", 1 + 2 * len(policies)) as progress:
            play_on(trained)
            played = session.runner.run(session.player.play_all(plans, concurrency=concurrency))
            progress.advance(1, {"episodes": len(played)})
            for name, params in policies.items():
                play_on(params)
                reviewed = session.runner.run(session.player.review_all(plans, played, concurrency=concurrency))
                reviews = read_reviews(reviewed, session.start_bank(), number)
                progress.advance(1, {"reviews": len(reviews)})
                play_on(trained)
                measuring = measure_utilities(
                    session.player, judge, reviewed, reviews, session.tasks["train"], session.start_bank(), number
                )
                utilities, metrics = session.runner.run(measuring)
                progress.advance(1, {"probe episodes": metrics["utility/probe_run"]})
                judged[name] = _judged(reviewed, reviews, utilities)
    return judged


def _plans(session: Session) -> list[EpisodePlan]:
    settings, bank = session.settings, session.start_bank()
    return [
        EpisodePlan(
            task=task,
            group=f"review/{split}/{task.id}",
            seed=derive_seed(settings.evaluation.eval_seed, "review", split, task.id),
            bank=bank,
            temperature=settings.agent.temperature,
        )
        for split in session.eval_splits
        for task in choose_games(session.tasks[split], settings.evaluation.eval_episodes)
    ]


def _judged(
    reviewed: Sequence[Trajectory], reviews: Sequence[Review], utilities: Mapping[int, RewardResult]
) -> list[JudgedReview]:
    """Returns a line for each episode that was reviewed; one whose context had no room has outcome "none"."""
    by_episode, judged = {review.index: review for review in reviews}, []
    for index, trajectory in enumerate(reviewed):
        if not trajectory.turns or not trajectory.reward.status.has_reward or "review_status" in trajectory.info:
            continue
        task, success = trajectory.task.id, trajectory.info["success"]
        review = by_episode.get(index)
        if review is None:
            judged.append(JudgedReview(task, success, "none", 0.0, ""))
            continue
        kind = review.outcome.kind
        utility = utilities[index].value if kind.changes_bank else 0.0
        judged.append(JudgedReview(task, success, kind.value, utility, trajectory.turns[-1].info["text"]))
    return judged
