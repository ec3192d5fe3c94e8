"""A player whose episodes are played by actors of a Ray cluster, next to their environments. Extra: `sage_jax[ray]`.

    driver: plan, with the version of the weights --> actor: engine client, environments, player --> driver: trajectory

Methods see a `Player`: a plan goes to the actor that plays fewest, and what comes back is what the actor's own player
returned. Actors speak to the servers that the run pushes weights to, and take answers of the run's version alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
from collections.abc import Awaitable, Callable
from typing import Any

from sage_jax.agents.episode import Player
from sage_jax.agents.gathering import StragglerError, Stragglers
from sage_jax.agents.plans import EpisodePlan
from sage_jax.envs.ray_worker import environment_of_actors, join_cluster
from sage_jax.errors import EnvError
from sage_jax.types import Status, Trajectory

OpenPlayer = Callable[[], contextlib.AbstractContextManager[Player]]
_START_S = 300.0
_CLOSE_S = 30.0


class RolloutWorker:
    """What the actor is: it hosts one player."""

    def __init__(self, open_player: OpenPlayer, folder: str) -> None:
        """Builds the player, in the folder in which the run was started: settings may name files relative to it."""
        os.chdir(folder)
        self._stack = contextlib.ExitStack()
        self._player = self._stack.enter_context(open_player())

    async def ready(self) -> None:
        """Returns when the player stands."""

    async def play(self, plan: EpisodePlan, weights: Any) -> Trajectory:
        """Plays a plan with answers of these weights."""
        self._player.engine.adopt(weights)  # type: ignore[attr-defined]  # settings allow no other engine
        return await self._player.play(plan)

    async def review(self, plan: EpisodePlan, played: Trajectory, weights: Any) -> Trajectory:
        """Reviews an episode with answers of these weights."""
        self._player.engine.adopt(weights)  # type: ignore[attr-defined]
        return await self._player.review(plan, played)

    async def close(self) -> None:
        """Ends the player's environments and connections."""
        await asyncio.to_thread(self._stack.close)


class RayPlayer(Player):
    """A `Player` that has actors play. One that is lost costs the episodes it played, and another takes its place."""

    def __init__(self, *parts: Any, open_player: OpenPlayer, workers: int, concurrency: int, **options: Any) -> None:
        """Starts the actors, each with one CPU, spread over the cluster's machines.

        Args:
          *parts: as for `Player`; the engine is the one whose `published` weights the actors follow.
          open_player: opens the player of an actor, on its machine.
          workers: actors.
          concurrency: episodes at one time, of all actors together.
          **options: as for `Player`.

        Raises:
          ConfigError: Ray is not installed.
          EnvError: an actor did not start; with its reason.
        """
        super().__init__(*parts, **options)
        self._ray = join_cluster("rollout_backend='ray'")
        actor_class = self._ray.remote(
            num_cpus=1,
            max_restarts=0,
            max_concurrency=concurrency + 1,  # and `close`
            scheduling_strategy="SPREAD",
            runtime_env=environment_of_actors(JAX_PLATFORMS="cpu"),  # the chips are the trainer's and the servers'
        )(RolloutWorker)
        self._start = functools.partial(actor_class.remote, open_player, os.getcwd())
        self._workers, self._load = [self._start() for _ in range(workers)], [0] * workers
        try:
            self._ray.get([worker.ready.remote() for worker in self._workers], timeout=_START_S)
        except self._ray.exceptions.RayError as error:
            self.close()
            raise EnvError(f"rollout_workers={workers}: an actor did not start: {_reason(error)}") from error

    async def play(self, plan: EpisodePlan, stragglers: Stragglers | None = None) -> Trajectory:
        """Has an actor play one episode; an actor that is lost or late becomes the trajectory's status."""
        limit = contextlib.nullcontext() if stragglers is None else stragglers.limit()
        return await self._send(plan, lambda worker, weights: worker.play.remote(plan, weights), limit)

    async def review(self, plan: EpisodePlan, played: Trajectory) -> Trajectory:
        """Has an actor review, see `Player.review`; an actor that is lost costs the review alone."""
        call = lambda worker, weights: worker.review.remote(plan, played, weights)  # noqa: E731
        found = await self._send(plan, call, contextlib.nullcontext())
        if found.turns or not played.turns:
            return found
        lost = {"review_status": found.reward.status.value, "error": f"review: {found.info['error']}"}
        return dataclasses.replace(played, info={**played.info, **lost})

    async def _send(
        self,
        plan: EpisodePlan,
        call: Callable[[Any, Any], Awaitable[Trajectory]],
        limit: contextlib.AbstractAsyncContextManager[None],
    ) -> Trajectory:
        place = self._load.index(min(self._load))
        worker = self._workers[place]
        result = call(worker, self.engine.published)  # type: ignore[attr-defined]
        self._load[place] += 1
        # Actors have clocks too: one for the episode, and one for its review.
        longest = (1 + plan.review) * self.options.episode_timeout_s + _START_S
        try:
            async with asyncio.timeout(longest), limit:
                return await result
        except self._ray.exceptions.RayActorError as error:
            if self._workers[place] is worker:  # of all the episodes it played, one replaces it
                self._workers[place] = self._start()
            return self._failed(plan, Status.ENV_ERROR, f"rollout worker {place} was lost: {_reason(error)}")
        except StragglerError as error:
            self._ray.cancel(result)
            return self._failed(plan, Status.STRAGGLER, str(error))
        except TimeoutError:
            self._ray.cancel(result)
            return self._failed(plan, Status.TIMEOUT, f"rollout worker {place} did not answer")
        except asyncio.CancelledError:
            self._ray.cancel(result)
            raise
        finally:
            self._load[place] -= 1

    def _failed(self, plan: EpisodePlan, status: Status, reason: str) -> Trajectory:
        episode = self.episode(plan, plan.group)
        episode.fail(status, reason)
        return episode.trajectory()

    def close(self) -> None:
        """Ends the actors, giving them time to close what they opened."""
        closing = [worker.close.remote() for worker in self._workers]
        with contextlib.suppress(self._ray.exceptions.RayError):  # they are ended either way
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for worker in self._workers:
            self._ray.kill(worker)


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
