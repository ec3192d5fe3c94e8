"""Running an agent's Python where it can do no harm. Nothing here runs code in this process."""

from __future__ import annotations

from typing import Protocol

from sage_jax.tools.base import Tool, ToolFailure, ToolOutcome, ToolSpec


class PythonRunner(Protocol):
    """Runs a program and returns what it printed.

    Raises:
      ToolFailure: FAILED with the end of the traceback, TIMEOUT, or TOO_LARGE for too much output or memory.
    """

    def __call__(self, code: str) -> str:
        """Runs the program."""


def python_tool(run: PythonRunner) -> Tool:
    """Returns `python`; each call is a program of its own."""
    spec = ToolSpec(
        "python", "Run a Python program and see what it prints. Nothing is kept between calls.",
        {"code": ("string", "the whole program")},
    )  # fmt: skip

    def python(code: str) -> str:
        printed = run(code)
        if not printed.strip():
            raise ToolFailure(ToolOutcome.FAILED, "the program printed nothing")
        return printed.strip()

    return Tool(spec, python)
