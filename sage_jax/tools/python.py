"""Running an agent's Python where it can do no harm. Nothing here runs code in this process."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from sage_jax.sandbox import Access, Limits, RunStatus, choose_backend, run_program
from sage_jax.tools.base import Tool, ToolFailure, ToolOutcome, ToolSpec


class PythonRunner(Protocol):
    """Runs a program and returns what it printed.

    Raises:
      ToolFailure: FAILED with the end of the traceback, TIMEOUT, or TOO_LARGE for too much output or memory.
    """

    def __call__(self, code: str) -> str:
        """Runs the program."""


@dataclasses.dataclass(frozen=True)
class SandboxPython:
    """Runs programs in the sandbox of this machine (`PythonRunner`).

    Attributes:
      backend: a sandbox by name, or "auto".
      limits: of each program.
      readable: files and folders that programs may read.
    """

    backend: str = "auto"
    limits: Limits = dataclasses.field(default_factory=Limits)
    readable: tuple[str, ...] = ()

    def __call__(self, code: str) -> str:
        """Runs a program. Raises SandboxError when no sandbox works here."""
        backend = choose_backend(self.backend)
        result = run_program(backend, code, limits=self.limits, access=Access(readable=self.readable))
        if result.status is RunStatus.OK:
            return result.text
        raise ToolFailure(_OUTCOMES.get(result.status, ToolOutcome.FAILED), f"{result.text}{result.error}".strip())


_OUTCOMES = {
    RunStatus.TIMEOUT: ToolOutcome.TIMEOUT,
    RunStatus.MEMORY: ToolOutcome.TOO_LARGE,
    RunStatus.OUTPUT: ToolOutcome.TOO_LARGE,
}


def python_tool(run: PythonRunner) -> Tool:
    """Returns `python`; each call is a program of its own."""
    spec = ToolSpec(
        "python",
        "Run a Python program and see what it prints. Nothing is kept between calls.",
        {"code": ("string", "the whole program")},
    )

    def python(code: str) -> str:
        printed = run(code)
        if not printed.strip():
            raise ToolFailure(ToolOutcome.FAILED, "the program printed nothing")
        return printed.strip()

    return Tool(spec, python)
