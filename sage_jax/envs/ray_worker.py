"""Environment workers as Ray actors: on whatever machines a Ray cluster has. Ray is an extra: `sage_jax[ray]`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from sage_jax.envs.process import WorkerLostError, unpack
from sage_jax.envs.worker import answer
from sage_jax.errors import ConfigError, EnvError

_CLOSE_S = 10.0


def join_cluster(asked_by: str) -> Any:
    """Returns Ray, connected to the cluster of $RAY_ADDRESS or else to a new one on this machine.

    Raises:
      ConfigError: Ray is not installed, or that cluster does not answer; names the setting that asked for it.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError(f"{asked_by} needs Ray: pip install 'sage_jax[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, include_dashboard=False)
        except ConnectionError as error:
            raise ConfigError(f"{asked_by}: no cluster at RAY_ADDRESS={os.environ.get('RAY_ADDRESS')!r}") from error
    return ray


def environment_of_actors(**variables: str) -> dict[str, Any]:
    """Returns the runtime environment of an actor: where this process finds modules, and variables."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {"env_vars": {"PYTHONPATH": path, **variables}}


class Host:
    """What the actor is: hosts one object and answers calls on it."""

    def __init__(self) -> None:
        """Hosts nothing yet."""
        self._hosted: Any = None

    def host(self, make: Callable[..., Any], args: tuple) -> tuple:
        """Builds the hosted object; returns the reply, and the process id."""
        reply, self._hosted = answer(make, args)
        return (reply if reply[0] == "error" else ("ok", None)), os.getpid()

    def call(self, method: str, args: tuple) -> tuple:
        """Calls a method of it; returns the reply."""
        return answer(getattr(self._hosted, method), args)[0]


class RayWorker:
    """A Ray actor that hosts one object; in use like `WorkerProcess`, and wherever the cluster has room.

    The cluster is the one of $RAY_ADDRESS, else a new one on this machine. Its machines need this package. An actor
    takes one CPU; actors are spread over the machines.
    """

    def __init__(self, make: Callable[..., Any], *args: Any, start_timeout_s: float = 120.0) -> None:
        """Joins or starts the cluster, and describes the worker. Arguments as for `WorkerProcess`.

        Raises:
          ConfigError: Ray is not installed.
        """
        self._ray = join_cluster("env_backend='ray'")
        self._make, self._args, self._start_timeout_s = make, args, start_timeout_s
        self._actor: Any = None
        self.pid: int | None = None

    @property
    def alive(self) -> bool:
        """Whether it was there when it was last called."""
        return self._actor is not None

    def start(self) -> None:
        """Starts the actor and builds the hosted object.

        Raises:
          WorkerLostError: the actor died, or the cluster had no room for it in time.
          EnvError: the object could not be built.
        """
        self.kill()
        actor_class = self._ray.remote(
            num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD", runtime_env=environment_of_actors()
        )(Host)
        self._actor = actor_class.remote()
        try:
            reply, pid = self._get("host", self._actor.host.remote(self._make, self._args), self._start_timeout_s)
            unpack(reply)
        except EnvError:
            self.kill()
            raise
        self.pid = pid

    def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Calls a method of the hosted object; raises what `WorkerProcess.call` does."""
        if self._actor is None:
            raise WorkerLostError("the worker is not running")
        return unpack(self._get(method, self._actor.call.remote(method, args), timeout_s))

    def kill(self) -> None:
        """Ends the actor at once. Does nothing when there is none."""
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor = self.pid = None

    def close(self) -> None:
        """Ends the actor, giving it the time to close what it hosts."""
        if self._actor is not None:
            with contextlib.suppress(EnvError):  # it is ended either way
                self.call("close", timeout_s=_CLOSE_S)
        self.kill()

    def _get(self, method: str, result: Any, timeout_s: float) -> Any:
        try:
            return self._ray.get(result, timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError as error:
            self.kill()
            raise WorkerLostError(f"{method} took longer than {timeout_s:g} s; its worker was killed") from error
        except self._ray.exceptions.RayError as error:
            self.kill()
            raise WorkerLostError(f"the worker died during {method}: {str(error).splitlines()[0]}") from error
