"""The lite world as an environment: the same tasks, words and checks as the twin's, the agent's code in a sandbox.

The world lives on the host; the sandboxed interpreter can only call its APIs. The right answer and the checks never
enter the sandbox.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from sage_jax.envs.appworld.env import EVALUATE, cut
from sage_jax.envs.appworld.lite import apps
from sage_jax.envs.appworld.lite.state import State
from sage_jax.envs.appworld.twin.base import TwinTask
from sage_jax.envs.appworld.twin.world import World, WorldOptions, make_world
from sage_jax.envs.base import Observation, StepResult
from sage_jax.errors import ConfigError, DataError, EnvError, SandboxError
from sage_jax.sandbox import Backend, Limits, choose_backend
from sage_jax.sandbox.interpreter import Interpreter
from sage_jax.types import Task

BENCHMARK = "appworld_lite"


@functools.lru_cache(maxsize=4)
def _world(options: WorldOptions) -> tuple[World, dict[str, TwinTask]]:
    world = make_world(options)
    return world, {task.id: task for task in world.tasks}


def load_lite_tasks(options: WorldOptions | None = None) -> dict[str, tuple[Task, ...]]:
    """Returns the tasks of a generated world by split, a scenario's three in a row."""
    options = options or WorldOptions()
    world, tasks = _world(options)
    return {split: tuple(_task(world, tasks[i], split) for i in ids) for split, ids in world.splits.items()}


def _task(world: World, task: TwinTask, split: str) -> Task:
    scenario = task.id.rpartition("_")[0]
    payload = {
        "world": dataclasses.asdict(world.options),
        "scenario": scenario,
        "instruction": task.instruction,
        "twin": True,
    }
    return Task(task.id, BENCHMARK, split, world.templates[scenario], payload)


@dataclasses.dataclass
class AppworldLiteFactory:
    """Makes lite environments for `EnvPool`. Picklable.

    Attributes:
      sandbox: a backend's name or "auto".
      unsafe_no_sandbox: go on without a sandbox where none works.
      memory_mb: address space of the agent's interpreter, in MiB.
      timeout_s: longest time one turn may take; a turn that takes longer fails, and the shell is lost.
      text_chars: most characters of an observation.
      evaluate: "done", tests are told when the agent completes the task; "always", after every step (partial credit).
    """

    sandbox: str = "auto"
    unsafe_no_sandbox: bool = False
    memory_mb: int = 256
    timeout_s: float = 10.0
    text_chars: int = 4000
    evaluate: str = "done"
    _backend: Backend | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("memory_mb", "timeout_s", "text_chars"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"AppworldLiteFactory {name} is {getattr(self, name)}, expected a number above 0")
        if self.evaluate not in EVALUATE:
            raise ConfigError(
                f"AppworldLiteFactory evaluate is {self.evaluate!r}, expected one of {', '.join(EVALUATE)}"
            )

    def __call__(self) -> AppworldLiteEnv:
        """Returns a new environment."""
        if self._backend is None:
            self._backend = choose_backend(self.sandbox, unsafe_no_sandbox=self.unsafe_no_sandbox)
        return AppworldLiteEnv(self, self._backend)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings alone."""
        return {**self.__dict__, "_backend": None}


class AppworldLiteEnv:
    """Plays one task at a time. Reward 1.0 for the step that completes a task which is then judged solved."""

    def __init__(self, settings: AppworldLiteFactory, backend: Backend) -> None:
        """Starts nothing yet."""
        self._settings, self._backend = settings, backend
        self._shell: Interpreter | None = None
        self._state: State | None = None
        self._over = False  # judged; the shell is there until the next episode
        self._expert: list[str] | None = None

    def reset(self, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts a task with a fresh world and a fresh interpreter.

        Returns:
          The instruction and whose it is. Info: "task", "family", "scenario", "supervisor", "twin".

        Raises:
          DataError: there is no such task in the world that the payload describes.
          EnvError: the sandbox failed.
        """
        self.close()
        world, tasks = _world(WorldOptions(**task.payload["world"]))
        if task.id not in tasks:
            raise DataError(f"the generated world has no task {task.id!r}")
        found = tasks[task.id]
        self._over = False
        self._state = State(world.people[found.person], world.shared, found)
        self._expert = list(found.solution.turns()) if expert else None
        supervisor = apps.show_profile(self._state)
        info = {
            "task": found.instruction,
            "family": task.family,
            "scenario": task.payload["scenario"],
            "supervisor": supervisor,
            "twin": True,
            **self._expert_info(),
        }
        who = "{first_name} {last_name} ({email}, {phone_number})".format(**supervisor)
        return Observation(f"{found.instruction}\n\nMy name is {who}.", (), info)

    def step(self, action: str) -> StepResult:
        """Runs code in the agent's shell; see `AppworldEnv.step`.

        Code that takes too long or kills its interpreter is the agent's fault: the turn fails, the shell starts anew.

        Raises:
          EnvError: no episode runs, or no interpreter can be started.
        """
        state = self._state
        if state is None or self._over:
            raise EnvError("step() was called without a running episode; call reset() first")
        ran, text = self._execute(action, state)
        if self._expert:
            self._expert.pop(0)
        completed = state.completed is not None
        shown = text if ran else f"Execution failed. Traceback:\n{text}"
        info: dict[str, Any] = {"failed": not ran, "completed": completed, **self._expert_info()}
        won = False
        if completed or self._settings.evaluate == "always":
            tests = state.tests()
            won = completed and all(tests.values())
            info |= {"passed": sum(tests.values()), "total": len(tests)}
        self._over = completed
        return StepResult(cut(shown, self._settings.text_chars), (), float(won), completed, won, info)

    def run(self, code: str) -> tuple[bool, str]:
        """Runs code of ours in the agent's shell (`ShellEnvironment`).

        Raises:
          EnvError: there is no episode, or no interpreter can be started.
        """
        if self._state is None:
            raise EnvError("run() was called without an episode; call reset() first")
        return self._execute(code, self._state)

    def close(self) -> None:
        """Ends the interpreter."""
        self._state = None
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    def _execute(self, code: str, state: State) -> tuple[bool, str]:
        if self._shell is None:
            limits = Limits(wall_s=None, cpu_s=120, memory_mb=self._settings.memory_mb, processes=4)
            try:
                self._shell = Interpreter(
                    self._backend, lambda app, name, arguments: apps.call(state, app, name, arguments), limits=limits
                )
            except SandboxError as error:
                raise EnvError(f"the agent's interpreter did not start: {error}") from error
        try:
            ran, text = self._shell.execute(code, timeout_s=self._settings.timeout_s)
        except SandboxError:
            self._shell.close()
            self._shell = None
            limit = self._settings.timeout_s
            return False, f"The code ran longer than {limit:g} s or ended its interpreter. All names are lost."
        return ran, text if text.strip() or not ran else "Execution successful."

    def _expert_info(self) -> dict[str, Any]:
        return {} if self._expert is None else {"expert_action": self._expert[0] if self._expert else None}
