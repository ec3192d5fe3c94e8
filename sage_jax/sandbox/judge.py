"""Says whether a sandbox held against an attack: what was read, written, reached, killed and left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

from sage_jax.sandbox.backends import GUEST, Backend
from sage_jax.sandbox.corpus import Attack
from sage_jax.sandbox.run import run_program
from sage_jax.sandbox.spec import Access, Limits, RunResult

OVERTIME_S = 1.0
_GONE_S = 1.0
_KEPT = "stays as it is"
_LIMITS = Limits(cpu_s=30, memory_mb=128, processes=4, output_kb=256, disk_mb=8)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What an attack came to. `faults` is empty when the sandbox held."""

    attack: str
    result: RunResult
    faults: tuple[str, ...]


class Target:
    """What attacks are after, on this machine: a secret, a folder, listening sockets, a bystander process.

    A context manager; attacks run one at a time.
    """

    def __init__(self) -> None:
        """Makes the files and opens the sockets."""
        self._secret, self._token = secrets.token_hex(16), f"sage-attack-{secrets.token_hex(8)}"
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="sage-target-"))
        self._folder.chmod(0o755)
        self._temp = self._folder / "temp"
        self._temp.mkdir()
        self._old_temp, tempfile.tempdir = tempfile.tempdir, str(self._temp)  # for the sandboxes' scratch folders
        self._outside = self._folder / "outside"
        self._outside.mkdir()
        self._outside.chmod(0o777)  # only the sandbox keeps anybody from writing here
        (self._outside / "kept").write_text(_KEPT)
        (self._outside / "kept").chmod(0o666)
        (self._folder / "secret").write_text(self._secret)
        (self._folder / "answer.json").write_text(json.dumps({"answer": self._secret}))
        self._variable = f"SAGE_ATTACK_{secrets.token_hex(4)}"
        os.environ[self._variable] = self._secret  # to be found in this process's environment and memory
        sleep = "import time; time.sleep(3600)"
        self._bystander = subprocess.Popen([sys.executable, "-I", "-S", "-c", sleep])
        self._sockets = {
            "tcp": _listen(socket.AF_INET6, ("::", 0)),  # takes IPv4, too
            "udp": _listen(socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM),
            "unix": _listen(socket.AF_UNIX, str(self._folder / "socket")),
            "abstract": _listen(socket.AF_UNIX, "\0" + self._token),
        }

    def judge(self, backend: Backend, attack: Attack) -> Verdict:
        """Runs an attack and looks at what it did."""
        limits = dataclasses.replace(_LIMITS, wall_s=attack.wall_s)
        access = Access(env={"SAGE_TOKEN": self._token})
        result = run_program(backend, attack.code, self._input(), limits=limits, access=access)
        faults = []
        if result.status not in attack.statuses:
            expected = ", ".join(sorted(attack.statuses))
            faults.append(f"status {result.status}, expected {expected}: {result.error.strip()[-300:]}")
        if result.wall_s > attack.wall_s + OVERTIME_S:
            faults.append(f"took {result.wall_s:.1f} s with a limit of {attack.wall_s:g} s")
        if self._secret in json.dumps([result.value, result.error, result.text]):
            faults.append("the secret was read")
        faults += self._outside_faults() + self._socket_faults() + self._process_faults()
        if any(self._temp.iterdir()):
            faults.append("a scratch folder was left")
        return Verdict(attack.name, result, tuple(faults))

    def _input(self) -> dict[str, Any]:
        return {
            "secret": str(self._folder / "secret"),
            "ground_truth": str(self._folder / "answer.json"),
            "folder": str(self._folder),
            "outside": str(self._outside),
            "unix": str(self._folder / "socket"),
            "tcp": self._sockets["tcp"].getsockname()[1],
            "udp": self._sockets["udp"].getsockname()[1],
            "guest": GUEST,
            "token": self._token,
            "host_pid": os.getpid(),
            "bystander": self._bystander.pid,
        }

    def _outside_faults(self) -> list[str]:
        found = {path.name: path.read_text() for path in self._outside.iterdir()} if self._outside.exists() else {}
        mode = (self._outside / "kept").stat().st_mode & 0o777 if "kept" in found else 0
        faults = [] if (found, mode) == ({"kept": _KEPT}, 0o666) else ["something outside was written"]
        for folder in ("/var/tmp", "/dev/shm"):
            path = pathlib.Path(folder, self._token)
            if path.exists():
                path.unlink()
                faults.append(f"a file was left in {folder}")
        if faults:
            self._restore_outside()
        return faults

    def _restore_outside(self) -> None:
        """Puts the folder back, so that one fault is one attack's."""
        shutil.rmtree(self._outside, ignore_errors=True)
        self._outside.mkdir()
        self._outside.chmod(0o777)
        (self._outside / "kept").write_text(_KEPT)
        (self._outside / "kept").chmod(0o666)

    def _socket_faults(self) -> list[str]:
        """Returns a fault for each listener that heard something."""
        faults = []
        for name, listener in self._sockets.items():
            with contextlib.suppress(BlockingIOError):
                while True:
                    if listener.type == socket.SOCK_DGRAM:
                        listener.recv(64)
                    else:
                        listener.accept()[0].close()
                    faults.append(f"the {name} socket was reached")
        return faults

    def _process_faults(self) -> list[str]:
        """Returns faults for a dead bystander and for processes that outlived the sandbox; kills the latter."""
        faults = []
        if self._bystander.poll() is not None:
            faults.append("a process outside was killed")
        deadline = time.monotonic() + _GONE_S
        while (alive := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in alive:
            faults.append(f"process {process.pid} was left")
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return faults

    def _marked(self) -> list[psutil.Process]:
        """Returns the living processes that carry the sandbox's mark in their environment or command line."""
        token, found = self._token.encode(), []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                marks = [pathlib.Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
                if any(token in mark for mark in marks) and process.pid != os.getpid():
                    found.append(process)
        return found

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._bystander.kill()
        self._bystander.wait()
        for listener in self._sockets.values():
            listener.close()
        del os.environ[self._variable]
        tempfile.tempdir = self._old_temp
        shutil.rmtree(self._folder)


def _listen(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    if family == socket.AF_UNIX and address[0] != "\0":
        os.chmod(address, 0o777)
    if kind == socket.SOCK_STREAM:
        listener.listen(64)
    listener.setblocking(False)
    return listener
