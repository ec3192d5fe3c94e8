"""Runs one untrusted program: JSON in, JSON out. What comes back is parsed, and never unpickled or evaluated."""

from __future__ import annotations

import json
import signal
from typing import Any

from sage_jax.sandbox.backends import Backend
from sage_jax.sandbox.process import Transcript
from sage_jax.sandbox.spec import Access, Limits, RunResult, RunStatus

_ERROR_CHARS = 4000
_SCRIPT = "program.py"


def run_program(
    backend: Backend,
    code: str,
    payload: Any = None,
    *,
    call: str | None = None,
    limits: Limits | None = None,
    access: Access | None = None,
) -> RunResult:
    """Runs `code` in a sandbox of its own.

    Args:
      backend: from `choose_backend`.
      code: Python source. It finds `payload` under the name `input`.
      payload: JSON-serialisable.
      call: a function that the code defines, called with `**payload`; without it the answer is the name `result`.
      limits: defaults to `Limits()`; `wall_s` must be set.
      access: defaults to nothing.

    Returns:
      How it ended, with what it says of itself.

    Raises:
      SandboxError: the sandbox did not start. Whatever the program does is a status.
    """
    limits = limits or Limits()
    if limits.wall_s is None:
        raise ValueError("run_program needs limits with a wall_s")
    output_bytes = limits.output_kb * 1024
    request = {"code": code, "input": payload, "call": call, "text_limit": output_bytes // 2}
    process = backend.start([_SCRIPT], limits, access or Access())
    data = json.dumps(request).encode() + b"\n"
    return _read(process.communicate(data, wall_s=limits.wall_s, output_bytes=output_bytes))


def _read(transcript: Transcript) -> RunResult:
    """Returns the result of a transcript; only the host's own observations decide about time, size and crashes."""
    if transcript.why != "exit":
        return RunResult(RunStatus(transcript.why), wall_s=transcript.wall_s)
    if transcript.code == 128 + signal.SIGXCPU:
        return RunResult(RunStatus.TIMEOUT, error="CPU time ran out", wall_s=transcript.wall_s)
    answer = _parse(transcript.stdout) if transcript.code == 0 else None
    if answer is None:
        tail = transcript.stderr[-_ERROR_CHARS:].decode("utf-8", "replace")
        error = f"no answer, exit code {transcript.code}\n{tail}"
        return RunResult(RunStatus.CRASHED, error=error, wall_s=transcript.wall_s)
    status = RunStatus(answer.get("kind", RunStatus.OK))
    error = answer.get("error", "")
    return RunResult(status, answer.get("value"), error, answer["text"], transcript.wall_s)


def _parse(stdout: bytes) -> dict[str, Any] | None:
    """Returns the one JSON line a program has to answer with, None when it is anything else."""
    try:
        answer = json.loads(stdout.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        return None
    if set(answer) == {"value", "text"}:
        return answer
    kinds = (RunStatus.ERROR, RunStatus.MEMORY, RunStatus.OUTPUT)
    if set(answer) == {"error", "kind", "text"} and answer["kind"] in kinds and isinstance(answer["error"], str):
        return answer
    return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
