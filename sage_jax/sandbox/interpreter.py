"""The host's side of `guest/interpreter.py`: untrusted code, turn by turn, with its calls answered here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sage_jax.errors import SandboxError
from sage_jax.sandbox.backends import Backend
from sage_jax.sandbox.channel import Channel
from sage_jax.sandbox.spec import Access, Limits

_START_S = 60.0
_SCRIPT = "interpreter.py"
Handler = Callable[[str, str, Mapping[str, Any]], Any]


class CallFault(Exception):  # noqa: N818  (it is an answer, not an error of ours)
    """Raised by a handler: the call is refused, and the code gets an exception with these words."""


class Interpreter:
    """A sandboxed interpreter. Its state lives until `close`; whatever goes wrong ends it."""

    def __init__(self, backend: Backend, handler: Handler, *, limits: Limits | None = None, calls: int = 1000) -> None:
        """Starts it.

        Args:
          backend: from `choose_backend`.
          handler: answers (app, name, arguments) with a JSON value, or raises `CallFault`.
          limits: without wall_s; `cpu_s` bounds the whole life.
          calls: most calls of one piece of code.

        Raises:
          SandboxError: it did not start.
        """
        limits = limits or Limits(wall_s=None, cpu_s=120)
        self._handler, self._calls = handler, calls
        self._text_limit = limits.output_kb * 1024
        self._channel = Channel(backend.start([_SCRIPT], limits, Access()), start_s=_START_S)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._channel.alive

    def execute(self, code: str, *, timeout_s: float) -> tuple[bool, str]:
        """Runs code; returns whether it ran through, and what it printed or how it failed.

        Raises:
          SandboxError: it took too long, made too many calls, or ended. The interpreter is gone.
        """
        deadline = time.monotonic() + timeout_s
        self._channel.send({"code": code, "text_limit": self._text_limit}, timeout_s=timeout_s)
        for _ in range(self._calls + 1):
            message = self._channel.receive(timeout_s=max(0.0, deadline - time.monotonic()))
            match message:
                case {"ran": bool(ran), "text": str(text)} if len(message) == 2:
                    return ran, text
                case {"call": [str(app), str(name), dict(arguments)]} if len(message) == 1:
                    self._channel.send(self._answer(app, name, arguments), timeout_s=timeout_s)
                case _:
                    self.close()
                    raise SandboxError("the sandboxed interpreter sent what is no message")
        self.close()
        raise SandboxError(f"the sandboxed code made more than {self._calls} calls")

    def close(self) -> None:
        """Ends it."""
        self._channel.close()

    def _answer(self, app: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"value": self._handler(app, name, arguments)}
        except CallFault as fault:
            return {"fault": str(fault)}
