"""The host's side of a sandboxed process: pipes, deadline, output limit, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

import psutil

from sage_jax.errors import SandboxError

_TERM_S = 0.3
_START_S = 60.0
READY = b"ready\n"  # what `guest/start.py` writes once it has given up its rights
_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True)
class Transcript:
    """What a process wrote until it ended or was ended.

    Attributes:
      stdout: bytes after the sandbox's own first line.
      stderr: bytes.
      code: exit code, 128 + n for signal n; None when it was killed here.
      why: "exit", "timeout" or "output".
      wall_s: seconds from the program's start, the sandbox standing, until nothing of it was left.
    """

    stdout: bytes
    stderr: bytes
    code: int | None
    why: str
    wall_s: float


class SandboxedProcess:
    """A process that a backend started. Call `close`, or use it as a context manager: nothing of it survives that."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str],
        stop: Callable[[], object] | None = None,
        graceful: bool = False,
        folders: Sequence[str] = (),
    ) -> None:
        """Starts the process.

        Args:
          argv: command with the backend's wrapper around it.
          env: all variables the wrapper gets.
          stop: called when the process had to be killed (docker: the container is no child of its client, and its
            daemon may not answer while a client that reads no more is attached).
          graceful: whether the wrapper kills what it wraps when it gets SIGTERM, and must be given the chance.
          folders: host folders to delete at the end.

        Raises:
          SandboxError: the wrapper cannot be started.
        """
        self._stop, self._graceful, self._folders = stop, graceful, folders
        try:
            self._process = subprocess.Popen(
                argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            self._remove_folders()
            raise SandboxError(f"the sandbox's wrapper {argv[0]!r} cannot be started: {error}") from error
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        if stdin is None or stdout is None or stderr is None:
            raise SandboxError("the sandbox's process has no pipes")
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr

    @property
    def pid(self) -> int:
        """Process id of the wrapper."""
        return self._process.pid

    def poll(self) -> int | None:
        """Returns the wrapper's exit code, None while it runs."""
        return self._process.poll()

    def communicate(self, data: bytes, *, wall_s: float, output_bytes: int) -> Transcript:
        """Writes `data`, reads to the end, and kills at the deadline or at too much output.

        Args:
          data: for standard input, which is then closed.
          wall_s: seconds from the moment the sandbox stands.
          output_bytes: most bytes read from both outputs together.

        Raises:
          SandboxError: the sandbox did not come up: the program never started.
        """
        began: float | None = None  # when the sandbox stood and the program's own time began
        deadline = time.monotonic() + _START_S
        read: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        why, pending = "exit", memoryview(data)
        with self, selectors.DefaultSelector() as selector:
            for stream, events, name in (
                (self.stdin, selectors.EVENT_WRITE, "stdin"),
                (self.stdout, selectors.EVENT_READ, "stdout"),
                (self.stderr, selectors.EVENT_READ, "stderr"),
            ):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, events, name)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                for key, _ in ready:
                    if key.data == "stdin":
                        pending = _write(key.fd, pending)
                        finished = not pending
                    else:
                        chunk = os.read(key.fd, _CHUNK)
                        read[key.data] += chunk
                        finished = not chunk
                    if finished:
                        selector.unregister(key.fileobj)
                        getattr(self, key.data).close()
                if began is None and read["stdout"].startswith(READY):
                    began = time.monotonic()
                    deadline = began + wall_s
                if sum(map(len, read.values())) > output_bytes + len(READY):
                    why = "output"
                    break
                if time.monotonic() >= deadline:
                    why = "timeout"
                    break
            code = self._wait(max(0.0, deadline - time.monotonic())) if why == "exit" else None
            why = "timeout" if why == "exit" and code is None else why
        ended = time.monotonic()
        if began is None:
            raise SandboxError(
                f"the sandbox did not start ({why}, exit code {code}): {read['stderr'][-500:].decode(errors='replace')}"
            )
        output = bytes(read["stdout"][len(READY) :])
        return Transcript(output, bytes(read["stderr"]), code, why, ended - began)

    def _wait(self, timeout_s: float) -> int | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """Kills what still runs and deletes the sandbox's folders. Does nothing the second time."""
        if self._process.poll() is None:
            if self._graceful:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_TERM_S)
            self._kill_tree()
            if self._stop is not None:
                self._stop()
        self._process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._remove_folders()

    def _kill_tree(self) -> None:
        """Kills the wrapper and its descendants."""
        if self._process.poll() is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = psutil.Process(self._process.pid)
            for process in [*tree.children(recursive=True), tree]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

    def _remove_folders(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders = ()

    def __enter__(self) -> SandboxedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write(fd: int, data: memoryview) -> memoryview:
    """Writes what fits; a reader that is gone takes the rest with it."""
    try:
        return data[os.write(fd, data) :] if data else data
    except BrokenPipeError:
        return memoryview(b"")
