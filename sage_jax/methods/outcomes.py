"""What a round's episodes come to together: means over those that have an outcome, and an error when none has one.

An outage must not become a number: a round without any outcome ends the run, and the same command plays it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sage_jax.errors import EngineError
from sage_jax.settings import RunSettings
from sage_jax.types import RewardResult, Status, Trajectory


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the mean of each list by its name; one over nothing is no number and is left out."""
    return {name: float(np.mean(found)) for name, found in values.items() if len(found)}


def failure(reward: RewardResult, error: str) -> str:
    """Returns why there is no reward, "" where there is one."""
    return "" if reward.status.has_reward else f"{reward.status.value}: {error or 'no reason was given'}"


def failures(trajectories: Sequence[Trajectory]) -> list[str]:
    """Returns why each episode has no outcome, "" for those that have one."""
    return [failure(trajectory.reward, trajectory.info.get("error", "")) for trajectory in trajectories]


def require_round(trajectories: Sequence[Trajectory], settings: RunSettings, number: int) -> None:
    """Checks that a round came to an outcome; with running_turns="drop" it may lose all its episodes to that.

    Args:
      trajectories: of the round.
      settings: of the run.
      number: of the round, from 0.

    Raises:
      EngineError: see `require_outcome`.
    """
    wanted = settings.rl.running_turns == "drop"
    kept = [one for one in trajectories if not (wanted and one.reward.status is Status.ABORTED)]
    require_outcome(failures(kept), f"round {number + 1}")


def require_outcome(failed: Sequence[str], what: str) -> None:
    """Checks that at least one episode came to an outcome; no episodes at all are none that failed.

    Args:
      failed: why each episode has no outcome, "" for those that have one.
      what: was played, as the message calls it.

    Raises:
      EngineError: none has one. The message has the first reason.
    """
    if failed and all(failed):
        raise EngineError(
            f"{what}: none of its {len(failed)} episodes has an outcome, so nothing of it is kept and the same command "
            f"plays it again; the first one: {failed[0]}"
        )
