"""Servers as real processes, to be stopped, killed and started again at the same address."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

_ADDRESS = re.compile(r"listening on (http://\S+:(\d+))")


class ServerProcess:
    """`python -m <module> <arguments> --port P` in a process of its own; the module prints its address when ready.

    with ServerProcess("sage_jax.rollout.server", "--model", folder) as server:
        ... server.url ...
    """

    def __init__(self, module: str, *arguments: str, start_s: float = 120.0, env: dict[str, str] | None = None):
        """Starts it and waits until it listens.

        Raises:
          RuntimeError: it ended, or did not listen within `start_s` seconds; with what it printed.
        """
        self._command = [sys.executable, "-m", module, *arguments]
        self._env = {**os.environ, "JAX_PLATFORMS": "cpu", **(env or {})}
        self._start_s, self._port = start_s, 0
        self.url = ""
        self.start()

    def start(self) -> None:
        """Starts it, at the address it had before if it had one."""
        self.process = subprocess.Popen(
            [*self._command, "--port", str(self._port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._env,
        )
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        printed = ""
        try:
            while (match := _ADDRESS.search(printed)) is None:
                line = lines.get(timeout=self._start_s)
                printed += line
                if not line:
                    raise RuntimeError(f"{' '.join(self._command)} ended: {printed}")
        except queue.Empty:
            self.kill()
            raise RuntimeError(f"{' '.join(self._command)} does not listen: {printed}") from None
        self.url, self._port = match[1], int(match[2])

    def _read(self, lines: queue.Queue[str]) -> None:
        """Hands on what the process prints; reads to the end, so that it never blocks on a full pipe."""
        stream = self.process.stdout
        assert stream is not None  # for the type checker: Popen was given PIPE
        with stream:
            for line in stream:
                lines.put(line)
        lines.put("")

    def kill(self) -> None:
        """SIGKILL, and waits."""
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, waits, and returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()


def server_arguments(**sizes: int) -> Sequence[str]:
    """Writes engine sizes as the arguments of sage_jax.rollout.server."""
    return [part for name, value in sizes.items() for part in (f"--{name.replace('_', '-')}", str(value))]
