"""The parent's side of one worker process: start, call with a deadline, kill.

Workers are started as fresh interpreters rather than by multiprocessing's spawn, which would import the parent's main
module (and with it jax) into every worker. Only plain pickled data crosses the pipe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from sage_jax.errors import DataError, EnvError

_GRACE_S = 2.0
_CLOSE_S = 10.0  # to close what it hosts


class WorkerLostError(EnvError):
    """The worker process died or was killed at a deadline; what it held is gone."""


class WorkerProcess:
    """A child process that hosts one object.

    Not thread-safe: one thread calls it. After `WorkerLostError` the process is gone and `start` makes a new one.
    """

    def __init__(self, make: Callable[..., Any], *args: Any, start_timeout_s: float = 120.0) -> None:
        """Describes the worker; nothing is started yet.

        Args:
          make: called in the child as make(*args) to build the hosted object; pickled, so importable there.
          *args: its arguments, pickled.
          start_timeout_s: longest time the child may take to start and to build the object.
        """
        self._make, self._args, self._start_timeout_s = make, args, start_timeout_s
        self._process: subprocess.Popen | None = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Process id, None when not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.pid is not None

    def start(self) -> None:
        """Starts the process and builds the hosted object.

        Raises:
          WorkerLostError: the process died or took too long.
          EnvError: the object could not be built.
        """
        self.kill()
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
            command = [sys.executable, "-m", "sage_jax.envs.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._pipe = Connection(ours.detach())
        try:
            self.call("host", self._make, *self._args, timeout_s=self._start_timeout_s)
        except EnvError:
            self.kill()
            raise

    def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Calls a method of the hosted object.

        Raises:
          WorkerLostError: the process died, or was killed because `timeout_s` seconds had passed.
          DataError: the object raised it.
          EnvError: the object raised anything else.
        """
        if self._pipe is None:
            raise WorkerLostError("the worker is not running")
        try:
            self._pipe.send_bytes(pickle.dumps((method, args)))
            if not self._pipe.poll(timeout_s):
                self.kill()
                raise WorkerLostError(f"{method} took longer than {timeout_s:g} s; its worker was killed")
            reply = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            code = self._exit_code()
            self.kill()
            raise WorkerLostError(f"the worker died during {method} (exit code {code})") from error
        return unpack(reply)

    def _exit_code(self) -> int | None:
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=_GRACE_S)
        return None

    def kill(self) -> None:
        """Ends the process at once. Does nothing when there is none."""
        self._shut(grace_s=0.0)

    def close(self) -> None:
        """Ends the process, giving it the time to close what it hosts."""
        self._shut(grace_s=_CLOSE_S)

    def _shut(self, grace_s: float) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            try:
                self._process.wait(timeout=grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def unpack(reply: tuple) -> Any:
    """Returns the value of a worker's reply, or raises the error that it tells of.

    Raises:
      DataError: the hosted object raised it.
      EnvError: it raised anything else.
    """
    status, *content = reply
    if status == "ok":
        return content[0]
    kind, message = content
    if kind == DataError.__name__:
        raise DataError(message)
    raise EnvError(message if kind == EnvError.__name__ else f"{kind}: {message}")
