"""AppWorld as an environment: an action is Python code, an observation what it printed.

The state of the interpreter is kept from turn to turn. An episode ends when the code has called
`apis.supervisor.complete_task`; then the evaluator judges the world it left. Every environment has a server of its own.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import psutil

from sage_jax.envs.appworld import dataset
from sage_jax.envs.appworld.home import Home, default_home
from sage_jax.envs.appworld.server import AppworldServer, Evaluator, remove_stale_folders
from sage_jax.envs.base import Observation, StepResult
from sage_jax.errors import ConfigError, EnvError
from sage_jax.sandbox import Backend, choose_backend
from sage_jax.types import Task

EVALUATE = ("done", "always")
_FAILED = "Execution failed."
COMPLETE = "apis.supervisor.complete_task(answer=answer)"


@dataclasses.dataclass
class AppworldFactory:
    """Makes AppWorld environments for `EnvPool`. Picklable.

    Attributes:
      home: folder that third_party/appworld/install.sh made, None for the default.
      sandbox: a backend's name or "auto".
      unsafe_no_sandbox: go on without a sandbox where none works.
      servers: most servers of one worker process: as many episodes can run in it at once.
      memory_mb: address space of each server, in MiB; a server uses about 300 of them.
      recycle_episodes: episodes after which a server is replaced.
      recycle_rss_mb: resident memory above which it is replaced.
      timeout_s: longest time one request may take.
      text_chars: most characters of an observation.
      evaluate: "done", judge when the agent completes the task; "always", judge after every step (partial credit).
    """

    home: str | None = None
    sandbox: str = "auto"
    unsafe_no_sandbox: bool = False
    servers: int = 8
    memory_mb: int = 3072
    recycle_episodes: int = 50
    recycle_rss_mb: int = 600
    timeout_s: float = 60.0
    text_chars: int = 4000
    evaluate: str = "done"
    _shared: _Shared | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("servers", "memory_mb", "recycle_episodes", "recycle_rss_mb", "timeout_s", "text_chars"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"AppworldFactory {name} is {getattr(self, name)}, expected a number above 0")
        if self.evaluate not in EVALUATE:
            raise ConfigError(f"AppworldFactory evaluate is {self.evaluate!r}, expected one of {', '.join(EVALUATE)}")

    def __call__(self) -> AppworldEnv:
        """Returns a new environment; its server starts with its first episode."""
        if self._shared is None:
            self._shared = _Shared(self)
        return AppworldEnv(self, self._shared)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings alone."""
        return {**self.__dict__, "_shared": None}


class _Shared:
    """What the environments of a process share: sandbox, installation, evaluators, and the count of servers."""

    def __init__(self, factory: AppworldFactory) -> None:
        self._factory = factory
        self.home = Home(factory.home) if factory.home else default_home()
        self.backend: Backend = choose_backend(factory.sandbox, unsafe_no_sandbox=factory.unsafe_no_sandbox)
        remove_stale_folders()
        self._evaluators: dict[str, Evaluator] = {}
        self._lock = threading.Lock()
        self.servers = 0

    def start_server(self, root: str) -> AppworldServer:
        with self._lock:
            if self.servers >= self._factory.servers:
                raise EnvError(
                    f"{self.servers} AppWorld servers run in this worker, as many as servers={self._factory.servers} "
                    "allows; play fewer episodes at once, or allow more"
                )
            self.servers += 1
        try:
            return AppworldServer(self.home, root, self.backend, memory_mb=self._factory.memory_mb)
        except BaseException:
            self.server_gone()
            raise

    def server_gone(self) -> None:
        with self._lock:
            self.servers -= 1
            last = self.servers == 0
        if last:  # nobody is left who could ask
            for evaluator in self._evaluators.values():
                evaluator.close()
            self._evaluators.clear()

    def evaluator(self, root: str) -> Evaluator:
        found = self._evaluators.get(root)
        if found is None or not found.alive:
            if found is not None:
                found.close()
            self._evaluators[root] = Evaluator(self.home, root, self.backend, memory_mb=self._factory.memory_mb)
        return self._evaluators[root]


class AppworldEnv:
    """Plays one task at a time. Reward 1.0 for the step that completes a task which is then judged solved."""

    def __init__(self, settings: AppworldFactory, shared: _Shared) -> None:
        """Starts nothing yet."""
        self._settings, self._shared = settings, shared
        self._server: AppworldServer | None = None
        self._root = ""
        self._task: Task | None = None
        self._over = False  # judged; the shell is there until the next episode
        self._experiment = ""
        self._expert: list[str] = []
        self._wants_expert = False

    def reset(self, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts a task in a fresh world.

        Args:
          task: from `dataset.load_tasks`.
          seed: of the engine's own randomness.
          expert: whether every info carries "expert_action": the scripted solution's next turn.

        Returns:
          The instruction and whose it is. Info: "task", "family", "scenario", "supervisor", "twin".

        Raises:
          DataError: the data root lacks the task.
          EnvError: the server failed.
        """
        self._end_episode()
        root = str(task.payload["root"])
        server = self._ready_server(root)
        options = {"random_seed": seed % (1 << 31), "timeout_seconds": int(max(1, self._settings.timeout_s // 2))}
        try:
            self._experiment, said = server.load(task.id, timeout_s=self._settings.timeout_s, **options)
        except BaseException:
            self._drop_server()
            raise
        self._task, self._over = task, False
        solution = dataset.solution_of(root, task.id) if expert else None
        self._wants_expert = expert
        self._expert = []
        if solution is not None:
            define = f"{solution['functions']}\n\nanswer = {solution['call']}\nprint(answer)"
            self._expert = [define, COMPLETE]
        supervisor = said["supervisor"]
        who = "{first_name} {last_name} ({email}, {phone_number})".format(**supervisor)
        info = {
            "task": said["instruction"],
            "family": task.family,
            "scenario": dataset.scenario_of(task.id),
            "supervisor": supervisor,
            "twin": dataset.is_twin(root),
            **self._expert_info(),
        }
        return Observation(f"{said['instruction']}\n\nMy name is {who}.", (), info)

    def step(self, action: str) -> StepResult:
        """Runs code in the agent's shell.

        Returns:
          What it printed, or how it failed. Info: "failed" (an exception), "completed", and once judged "passed",
          "total" (tests of the task); never what the right answer was.

        Raises:
          EnvError: no episode runs, or the server or the evaluator failed.
        """
        if self._task is None or self._server is None or self._over:
            raise EnvError("step() was called without a running episode; call reset() first")
        timeout_s, task_id = self._settings.timeout_s, self._task.id
        try:
            text = self._server.call("/execute", {"task_id": task_id, "code": action}, timeout_s=timeout_s)
            completed = bool(self._server.call("/task_completed", {"task_id": task_id}, timeout_s=timeout_s))
        except EnvError:
            self._drop_server()
            raise
        if self._expert:
            self._expert.pop(0)
        info: dict[str, Any] = {"failed": text.startswith(_FAILED), "completed": completed}
        info |= self._expert_info()
        won = False
        if completed or self._settings.evaluate == "always":
            evaluator = self._shared.evaluator(self._root)
            verdict = evaluator.evaluate(task_id, self._server.outputs(self._experiment, task_id), timeout_s=timeout_s)
            won = completed and verdict["success"]
            info |= {"passed": verdict["passed"], "total": verdict["total"]}
        self._over = completed
        return StepResult(cut(text, self._settings.text_chars), (), float(won), completed, won, info)

    def run(self, code: str) -> tuple[bool, str]:
        """Runs code of ours in the agent's shell (`ShellEnvironment`).

        Raises:
          EnvError: there is no shell, or the server failed.
        """
        if self._task is None or self._server is None:
            raise EnvError("run() was called without an episode; call reset() first")
        request = {"task_id": self._task.id, "code": code}
        try:
            text = self._server.call("/execute", request, timeout_s=self._settings.timeout_s)
        except EnvError:
            self._drop_server()
            raise
        return not text.startswith(_FAILED), text

    def close(self) -> None:
        """Ends the server."""
        self._task = None
        if self._server is not None:
            self._drop_server()

    def _expert_info(self) -> dict[str, Any]:
        return {"expert_action": self._expert[0] if self._expert else None} if self._wants_expert else {}

    def _ready_server(self, root: str) -> AppworldServer:
        """Returns a healthy server for a data root: the one there is, or a new one."""
        server = self._server
        if server is not None and (self._root != root or not self._healthy(server)):
            self._drop_server()
            server = None
        if server is None:
            server = self._shared.start_server(root)
            self._server, self._root = server, root
        return server

    def _healthy(self, server: AppworldServer) -> bool:
        if not server.alive or server.episodes >= self._settings.recycle_episodes:
            return False
        return _rss_mb(server.pid) <= self._settings.recycle_rss_mb

    def _end_episode(self) -> None:
        """Deletes what the last episode left."""
        if self._task is not None and self._server is not None:
            self._server.forget(self._experiment, self._task.id)
        self._task = None

    def _drop_server(self) -> None:
        self._task = None
        if self._server is not None:
            self._server.close()
            self._server = None
            self._shared.server_gone()


def cut(text: str, most: int) -> str:
    """Returns a text of at most `most` characters, and how many more there are."""
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} more characters]"


def _rss_mb(pid: int) -> float:
    """Returns the resident memory of a process and its descendants, in MiB; 0 when it is gone."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        return total / (1 << 20)
    return total / (1 << 20)
