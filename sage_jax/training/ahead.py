"""A round that is played in a thread while the learner works on the one before it (`ahead=True`).

The round is played with the weights from before that update, one update behind those that learn from it. Which weights
play which round is a matter of round numbers and not of timing, so that a run stays a function of its seed, and a
checkpoint holds both sets.

With `running_turns` other than "finish" the engine gets the new weights as soon as the update is done, in the middle of
the round in play. Which tokens they sample is then a matter of timing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

from sage_jax.training.processes import is_first, once
from sage_jax.types import Trajectory

IN_MID_TURN = {"correct": "continue", "drop": "abort"}  # running_turns -> what the engine does about turns that run


def span_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns how many turns new weights came into, and how many of their tokens older weights had sampled before."""
    turns = [turn.weight_versions for one in trajectories for turn in one.turns if len(turn.weight_versions) > 1]
    return {
        "rollout/spanning_turns": float(len(turns)),
        "rollout/spanning_tokens": float(sum(spans[-1].start for spans in turns)),
    }


class Ahead:
    """At most one round in play; leaving the context ends it."""

    def __init__(self, runner: asyncio.Runner):
        """Has nothing in play.

        Args:
          runner: where rounds run. While one is in play, nothing else may use it.
        """
        self._runner = runner
        self._threads = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._playing: concurrent.futures.Future | None = None
        self.behind: Any = None

    def start(self, play: Callable[[], Any], behind: Any) -> None:
        """Begins to play in a thread.

        Args:
          play: runs a round on the runner and returns it; called in the first process only.
          behind: the parameters that the engine has now; kept for the learner.
        """
        self.behind = behind
        if is_first():
            self._playing = self._threads.submit(play)

    def take(self) -> tuple[Any, Any]:
        """Waits for the round in play; returns it, in all processes, and the parameters that played it.

        Raises:
          Exception: what `play` raised.
        """
        playing, behind = self._playing, self.behind
        result = once(lambda: playing.result())
        self._playing = self.behind = None
        return result, behind

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._playing is not None and not self._playing.done():
            loop = self._runner.get_loop()
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        self._threads.shutdown()  # waits: a loop that runs cannot be closed
