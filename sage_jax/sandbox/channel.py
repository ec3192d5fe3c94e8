"""Talks to a long-lived sandboxed process: a line of JSON there, a line of JSON back, each with a deadline."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import time
from typing import Any

from sage_jax.errors import SandboxError
from sage_jax.sandbox.process import READY, SandboxedProcess

_CHUNK = 1 << 16
_KEPT_STDERR = 4000


class Channel:
    """The two ends of a process that answers lines with lines. Whatever goes wrong ends the process."""

    def __init__(self, process: SandboxedProcess, *, start_s: float, line_kb: int = 4096) -> None:
        """Waits for the sandbox to stand.

        Args:
          process: just started; the channel owns it from here on.
          start_s: longest time that may take.
          line_kb: longest line taken, in KiB.

        Raises:
          SandboxError: it did not.
        """
        self._process = process
        self._limit = line_kb * 1024
        self._buffer = bytearray()
        self._stderr: collections.deque[bytes] = collections.deque(maxlen=16)
        self._selector = selectors.DefaultSelector()
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)
        os.set_blocking(process.stdin.fileno(), False)
        if self._line(start_s) + b"\n" != READY:
            raise self._failed("its first line is not the sandbox's own")

    @property
    def pid(self) -> int:
        """Process id of the sandbox's wrapper."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send(self, message: Any, *, timeout_s: float) -> None:
        """Sends a message.

        Raises:
          SandboxError: the process is gone or does not read.
        """
        data, deadline = memoryview(json.dumps(message).encode() + b"\n"), time.monotonic() + timeout_s
        while data:
            try:
                data = data[os.write(self._process.stdin.fileno(), data) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self._failed("it does not read what it is sent") from None
                self._drain(0.01)
            except (BrokenPipeError, ValueError) as error:
                raise self._failed("it is gone") from error

    def receive(self, *, timeout_s: float) -> Any:
        """Returns the next message.

        Raises:
          SandboxError: none came in time, or what came is no JSON line.
        """
        line = self._line(timeout_s)
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._failed(f"it sent no JSON: {bytes(line[:80])!r}") from error

    def close(self) -> None:
        """Ends the process and all it started."""
        self._selector.close()
        self._process.close()

    def _line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while (end := self._buffer.find(b"\n")) < 0:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._failed(f"no line within {timeout_s:g} s")
            if len(self._buffer) > self._limit:
                raise self._failed(f"a line of more than {self._limit // 1024} KiB")
            if not self._drain(left):
                raise self._failed("it is gone")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _drain(self, timeout_s: float) -> bool:
        """Reads what there is; returns whether there can be more."""
        for key, _ in self._selector.select(timeout_s):
            chunk = os.read(key.fd, _CHUNK)
            if key.data == "err":
                self._stderr.append(chunk[-_KEPT_STDERR:])
                if not chunk:
                    self._selector.unregister(key.fileobj)
            elif chunk:
                self._buffer += chunk
            else:
                with contextlib.suppress(BlockingIOError):  # its last words may be there as well
                    self._stderr.append(os.read(self._process.stderr.fileno(), _KEPT_STDERR))
                return False
        return True

    def _failed(self, reason: str) -> SandboxError:
        """Ends the process; returns the error to raise."""
        code, tail = self._process.poll(), b"".join(self._stderr)[-500:].decode(errors="replace").strip()
        self.close()
        return SandboxError(f"the sandboxed process failed: {reason} (exit code {code}) {tail}".strip())
