"""Many episodes on a few worker processes, for asyncio callers.

Each worker hosts many environments and serves one call at a time; a thread here hands it its calls. A call that takes
too long, or a worker that dies, costs the episodes of that worker: their calls raise EnvError, a new worker takes its
place, and the other workers notice nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import queue
import threading
import time
from collections.abc import Hashable
from typing import Any

from sage_jax.envs.base import EnvFactory, Environment, Observation, StepResult
from sage_jax.envs.process import WorkerProcess
from sage_jax.envs.ray_worker import RayWorker
from sage_jax.errors import ConfigError, EnvError
from sage_jax.types import Task

BACKENDS = {"process": WorkerProcess, "ray": RayWorker}
_SPREAD = 8  # episodes by which the preferred worker of a game may be ahead of the least busy one


class EnvHost:
    """Lives in the worker: the environments of its episodes, reused from one episode to the next."""

    def __init__(self, factory: EnvFactory) -> None:
        """Hosts environments made by `factory`."""
        self._factory = factory
        self._running: dict[int, Environment] = {}
        self._free: list[Environment] = []

    def reset(self, episode: int, task: Task, seed: int, expert: bool) -> Observation:
        """Starts an episode in a free environment, or in a new one."""
        env = self._free.pop() if self._free else self._factory()
        try:
            observation = env.reset(task, seed, expert=expert)
        except BaseException:
            env.close()  # its state is unknown
            raise
        self._running[episode] = env
        return observation

    def step(self, episode: int, action: str) -> StepResult:
        """Plays an action."""
        try:
            return self._running[episode].step(action)
        except BaseException:
            self._running.pop(episode).close()
            raise

    def run(self, episode: int, code: str) -> tuple[bool, str]:
        """Runs code of ours in an episode's shell, see `base.ShellEnvironment`."""
        env = self._running[episode]
        try:
            return env.run(code)
        except BaseException:
            self._running.pop(episode).close()
            raise

    def release(self, episode: int) -> None:
        """Ends an episode; its environment serves another one."""
        env = self._running.pop(episode, None)
        if env is not None:
            self._free.append(env)

    def close(self) -> None:
        """Closes every environment, also those that others of them prevent from it."""
        with contextlib.ExitStack() as stack:
            for env in (*self._running.values(), *self._free):
                stack.callback(env.close)


class _Lane:
    """One worker process and the thread that hands it its calls, in order."""

    def __init__(self, backend: str, factory: EnvFactory, timeout_s: float, start_timeout_s: float) -> None:
        self._process = BACKENDS[backend](EnvHost, factory, start_timeout_s=start_timeout_s)
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self.life = 0  # counts the processes this lane has had; episodes of an earlier one are lost
        self.load = 0  # episodes assigned
        self._thread = threading.Thread(target=self._serve, name="env-lane", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def submit(self, life: int | None, method: str, *args: Any) -> concurrent.futures.Future:
        """Queues a call on behalf of an episode of `life`; None starts one in whatever process there is."""
        future: concurrent.futures.Future = concurrent.futures.Future()
        self._calls.put((future, life, method, args))
        return future

    def stop(self) -> None:
        """Finishes what is queued, then ends the process and the thread."""
        self._calls.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, life, method, args = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = self._call(life, method, args)
            except Exception as error:  # the edge of the thread: whoever awaits the future gets it
                future.set_exception(error)
            else:
                future.set_result(result)
        self._process.close()

    def _call(self, life: int | None, method: str, args: tuple) -> tuple[int, Any]:
        """Makes a call; returns the process's life and the result."""
        if not self._process.alive:
            if life is not None:
                raise EnvError(f"{method}: the episode was lost with its worker process")
            self._process.start()
            self.life += 1
        elif life is not None and life != self.life:
            raise EnvError(f"{method}: the episode was lost with its worker process")
        return self.life, self._process.call(method, *args, timeout_s=self._timeout_s)


@dataclasses.dataclass(frozen=True)
class _Episode:
    """Where an episode runs: the lane, the life of its process, and a number that is never used twice."""

    lane: _Lane
    life: int
    number: int


class EnvPool:
    """Runs episodes by id. Ids are chosen by the caller; one id has one episode at a time."""

    def __init__(
        self,
        factory: EnvFactory,
        *,
        workers: int = 2,
        timeout_s: float = 60.0,
        start_timeout_s: float = 180.0,
        backend: str = "process",
    ) -> None:
        """Makes a pool; worker processes start with the first call they get.

        Args:
          factory: makes the environments, in the workers.
          workers: number of processes.
          timeout_s: longest time one call may take in its worker, time in the queue not counted.
          start_timeout_s: longest time a worker may take to start.
          backend: where workers run: one of BACKENDS.
        """
        if workers < 1:
            raise ConfigError(f"workers={workers}: an environment pool needs at least 1 worker process")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s={timeout_s}: a call needs some time; give seconds above 0")
        self._lanes = [_Lane(backend, factory, timeout_s, start_timeout_s) for _ in range(workers)]
        self._episodes: dict[Hashable, _Episode] = {}
        self._numbers = 0
        self._closed = False
        self.waited_s = 0.0  # by all callers of `reset` and `step`, in seconds

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [lane.pid for lane in self._lanes if lane.pid is not None]

    @property
    def restarts(self) -> int:
        """How many workers had to be started anew."""
        return sum(max(0, lane.life - 1) for lane in self._lanes)

    async def reset(self, env_id: Hashable, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts an episode, ending the one the id may have had.

        Raises:
          DataError: the task's files are missing or broken.
          EnvError: the environment failed, its worker died, or the call took too long.
        """
        await self.release(env_id)
        lane = self._choose(task)
        lane.load += 1
        self._numbers += 1
        number, begun = self._numbers, time.monotonic()
        future = lane.submit(None, "reset", number, task, seed, expert)
        try:
            life, observation = await asyncio.wrap_future(future)
            self.waited_s += time.monotonic() - begun
        except BaseException:
            lane.load -= 1
            future.add_done_callback(functools.partial(_release_late, lane, number))
            raise
        self._episodes[env_id] = _Episode(lane, life, number)
        return observation

    async def step(self, env_id: Hashable, action: str) -> StepResult:
        """Plays an action.

        Raises:
          EnvError: the id has no episode, the environment failed, its worker died, or the call took too long.
        """
        return await self._in_episode("step", env_id, action)

    async def run(self, env_id: Hashable, code: str) -> tuple[bool, str]:
        """Runs code of ours in the shell of an episode, see `base.ShellEnvironment`; errors as `step`."""
        return await self._in_episode("run", env_id, code)

    async def _in_episode(self, method: str, env_id: Hashable, text: str) -> Any:
        episode = self._episodes.get(env_id)
        if self._closed:
            raise EnvError("the environment pool is closed")
        if episode is None:
            raise EnvError(f"{method}: environment {env_id!r} has no running episode; call reset first")
        begun = time.monotonic()
        try:
            _, result = await asyncio.wrap_future(episode.lane.submit(episode.life, method, episode.number, text))
            self.waited_s += time.monotonic() - begun
        except EnvError:
            self._forget(env_id)
            raise
        return result

    async def release(self, env_id: Hashable) -> None:
        """Ends the id's episode and frees its place. Does nothing when there is none."""
        episode = self._forget(env_id)
        if episode is not None:
            episode.lane.submit(episode.life, "release", episode.number)

    def _forget(self, env_id: Hashable) -> _Episode | None:
        episode = self._episodes.pop(env_id, None)
        if episode is not None:
            episode.lane.load -= 1
        return episode

    def _choose(self, task: Task) -> _Lane:
        """Prefers the worker that has likely loaded the same game, unless it is much busier than another."""
        if self._closed:
            raise EnvError("the environment pool is closed")
        digest = hashlib.blake2b(task.id.encode(), digest_size=4).digest()
        preferred = self._lanes[int.from_bytes(digest, "big") % len(self._lanes)]
        idlest = min(self._lanes, key=lambda lane: lane.load)
        return preferred if preferred.load < idlest.load + _SPREAD else idlest

    def close(self) -> None:
        """Ends every worker. Calls in progress finish first; calling it twice is fine."""
        if not self._closed:
            self._closed = True
            for lane in self._lanes:
                lane.stop()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _release_late(lane: _Lane, number: int, reset: concurrent.futures.Future) -> None:
    """Ends an episode whose reset did succeed after its caller had been cancelled."""
    if not reset.cancelled() and reset.exception() is None:
        life, _ = reset.result()
        lane.submit(life, "release", number)
