"""One AppWorld server in a sandbox, and the evaluator beside it.

An agent's code runs inside the server's process, so the server is given nothing that the agent must not see: its folder
holds the task's database and words, and no ground truth. After an episode the host copies the database it left to the
evaluator, a process of its own that has the ground truth and runs no agent's code.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import stat
import tempfile
import uuid
from typing import Any

from sage_jax.envs.appworld.home import Home
from sage_jax.errors import DataError, EnvError, SandboxError
from sage_jax.sandbox import Access, Backend, Limits
from sage_jax.sandbox.channel import Channel

_PREFIX = "sage-appworld-"  # of folders
_START_S = 120.0
_MOST_BYTES = 256 << 20
_EVALUATE = str(pathlib.Path(__file__).parent / "engine" / "evaluate.py")
_PROCESSES = 48  # threads count


class AppworldServer:
    """`appworld serve environment` in a sandbox. Holds one world at a time."""

    def __init__(self, home: Home, root: str, backend: Backend, *, memory_mb: int) -> None:
        """Starts a server.

        Args:
          home: the engine's installation.
          root: the data root whose tasks are played.
          backend: the sandbox.
          memory_mb: address space of the server, in MiB.

        Raises:
          EnvError: the server did not start.
        """
        self._data = pathlib.Path(root, "data")
        self.folder = _make_folder()
        self.episodes = 0
        port = _free_port()
        shown = [str(self._data / name) for name in ("api_docs", "base_dbs") if (self._data / name).exists()]
        own = self.folder / "data"
        (own / "tasks").mkdir(parents=True)
        for path in shown:
            (own / pathlib.Path(path).name).symlink_to(path)
        argv = [
            home.command,
            "serve",
            "environment",
            "--port",
            str(port),
            "--root",
            str(self.folder),
            "--no-show-usage",
        ]
        spec = json.dumps({"argv": argv, "port": port, "start_s": _START_S})
        access = Access(
            readable=(*home.readable, *shown), writable=(str(self.folder),), port=port, env=_environment(home)
        )
        limits = _limits(memory_mb)
        try:
            process = backend.start(["serve.py", spec], limits, access)
            self._channel = Channel(process, start_s=_START_S)
            self._channel.receive(timeout_s=_START_S)
        except SandboxError as error:
            self._remove_folder()
            raise EnvError(f"the AppWorld server did not start: {error}") from error

    @property
    def pid(self) -> int:
        """Process id of the sandbox around the server."""
        return self._channel.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._channel.alive

    def load(self, task_id: str, *, timeout_s: float, **options: Any) -> tuple[str, dict[str, Any]]:
        """Starts a task; returns the name of the experiment and what the server says of the task.

        Raises:
          DataError: the data root has no such task.
          EnvError: the server failed.
        """
        source, target = self._data / "tasks" / task_id, self.folder / "data" / "tasks" / task_id
        if not (source / "specs.json").exists():
            raise DataError(f"AppWorld has no task {task_id!r} in {self._data}")
        if not target.exists():
            shutil.copytree(source / "dbs", target / "dbs")
            shutil.copy(source / "specs.json", target / "specs.json")
        experiment = uuid.uuid4().hex
        body = {"task_id": task_id, "experiment_name": experiment, "load_ground_truth": False, **options}
        answer = self.call("/initialize", body, timeout_s=timeout_s)
        self.episodes += 1
        return experiment, answer

    def call(self, path: str, body: Any, *, timeout_s: float) -> Any:
        """Posts a request and returns its output.

        Raises:
          EnvError: the server did not answer in time, or not with 200. It is stopped.
        """
        request = {"id": 0, "method": "POST", "path": path, "body": body, "timeout_s": timeout_s}
        try:
            self._channel.send(request, timeout_s=timeout_s)
            answer = self._channel.receive(timeout_s=timeout_s + 5)
        except SandboxError as error:
            raise EnvError(f"AppWorld server, {path}: {error}") from error
        if answer.get("status") != 200:
            self._channel.close()
            raise EnvError(f"AppWorld server, {path}: {answer.get('error') or answer.get('body', '')[:500]}")
        return json.loads(answer["body"])["output"]

    def outputs(self, experiment: str, task_id: str) -> pathlib.Path:
        """Returns the folder in which the server left the world's last state."""
        return self.folder / "experiments" / "outputs" / experiment / "tasks" / task_id / "dbs"

    def forget(self, experiment: str, task_id: str) -> None:
        """Deletes what an episode left."""
        shutil.rmtree(self.folder / "experiments" / "outputs" / experiment, ignore_errors=True)
        shutil.rmtree(self.folder / "data" / "tasks" / task_id, ignore_errors=True)

    def close(self) -> None:
        """Ends the server and deletes its folder."""
        self._channel.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Evaluator:
    """Judges end states by a data root's ground truth, in a sandboxed process of its own."""

    def __init__(self, home: Home, root: str, backend: Backend, *, memory_mb: int) -> None:
        """Starts the process; arguments as for `AppworldServer`.

        Raises:
          EnvError: it did not start.
        """
        self._folder = _make_folder()
        data = os.path.join(root, "data")
        (self._folder / "data").symlink_to(data)
        self._outputs = self._folder / "experiments" / "outputs"
        self._outputs.mkdir(parents=True)
        access = Access(
            readable=(*home.readable, os.path.dirname(_EVALUATE), data),
            writable=(str(self._folder),),
            env=_environment(home),
        )
        try:
            process = backend.start([home.python, "-B", _EVALUATE, str(self._folder)], _limits(memory_mb), access)
            self._channel = Channel(process, start_s=_START_S)
            self._channel.receive(timeout_s=_START_S)
        except SandboxError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise EnvError(f"the AppWorld evaluator did not start: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._channel.alive

    def evaluate(self, task_id: str, state: pathlib.Path, *, timeout_s: float) -> dict[str, Any]:
        """Returns {"success", "passed", "total", "failures"} of an end state.

        Raises:
          EnvError: the state cannot be read, or the evaluator failed.
        """
        experiment = uuid.uuid4().hex
        folder = self._outputs / experiment
        try:
            _copy_plain(state, folder / "tasks" / task_id / "dbs")
            self._channel.send({"task_id": task_id, "experiment": experiment}, timeout_s=timeout_s)
            answer = self._channel.receive(timeout_s=timeout_s)
        except SandboxError as error:
            raise EnvError(f"AppWorld evaluator, task {task_id}: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if "error" in answer:
            raise EnvError(f"AppWorld evaluator, task {task_id}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process and deletes its folder."""
        self._channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def remove_stale_folders() -> None:
    """Deletes the folders of workers that were killed before they could."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not pathlib.Path("/proc", owner).exists():
            shutil.rmtree(path, ignore_errors=True)


def _make_folder() -> pathlib.Path:
    """Makes a folder whose name tells which process it belongs to."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    folder.chmod(0o755)
    return folder


def _copy_plain(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies the plain files of a folder that an agent could write to: no link is followed, and not without end.

    Raises:
      EnvError: the folder is missing, too large, or holds something else than files.
    """
    if not source.is_dir() or source.is_symlink():
        raise EnvError(f"the AppWorld server left no state in {source}")
    target.mkdir(parents=True)
    left = _MOST_BYTES
    for entry in os.scandir(source):
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise EnvError(f"the AppWorld server left {entry.name!r}, which is no file") from error
        status = os.fstat(descriptor)
        left -= status.st_size
        if not stat.S_ISREG(status.st_mode) or left < 0:
            os.close(descriptor)
            raise EnvError(f"the AppWorld server left {entry.name!r}, which is no file or too large")
        with os.fdopen(descriptor, "rb") as file:
            (target / entry.name).write_bytes(file.read(status.st_size))
            (target / entry.name).chmod(0o644)


def _limits(memory_mb: int) -> Limits:
    return Limits(wall_s=None, cpu_s=None, memory_mb=memory_mb, processes=_PROCESSES, disk_mb=256, open_files=512)


def _environment(home: Home) -> dict[str, str]:
    return {"PATH": f"{os.path.dirname(home.python)}:/usr/bin:/bin", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    """Returns a port that the system has to spare. With bubblewrap and docker it is the sandbox's own anyway."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
