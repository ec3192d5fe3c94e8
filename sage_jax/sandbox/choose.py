"""Which sandbox this machine has: found out by running a program in each."""

from __future__ import annotations

import functools
import logging

from sage_jax.config import suggest
from sage_jax.errors import ConfigError, SandboxError
from sage_jax.sandbox.backends import BACKENDS, Backend, Unsafe
from sage_jax.sandbox.run import run_program
from sage_jax.sandbox.spec import Limits, RunStatus

AUTO = "auto"
_PROBE_LIMITS = Limits(wall_s=20.0)
_log = logging.getLogger(__name__)


def choose_backend(name: str = AUTO, *, unsafe_no_sandbox: bool = False) -> Backend:
    """Returns the named backend, or the first that works.

    Args:
      name: a key of `BACKENDS`, or "auto".
      unsafe_no_sandbox: go on without a sandbox where none works. Logged as a warning; `Backend.name` records it.

    Raises:
      ConfigError: no such backend.
      SandboxError: none works; says why, and how each could be made to.
    """
    if name != AUTO and name not in BACKENDS:
        raise ConfigError(f"unknown sandbox {name!r}.{suggest(name, (AUTO, *BACKENDS))}")
    names = list(BACKENDS) if name == AUTO else [name]
    reasons = []
    for candidate in names:
        reason = probe(candidate)
        if reason is None:
            return BACKENDS[candidate]
        reasons.append(f"  {candidate}: {reason}")
    report = "\n".join(reasons)
    if unsafe_no_sandbox:
        _log.warning(
            "RUNNING WITHOUT A SANDBOX: programs written by the model run with all of your rights.\n%s", report
        )
        return Unsafe()
    raise SandboxError(
        f"no sandbox for programs written by the model:\n{report}\n"
        "Fix one of these, or accept the risk with --unsafe_no_sandbox (config key unsafe_no_sandbox)."
    )


@functools.cache
def probe(name: str) -> str | None:
    """Returns why a backend does not work here, None when it ran a program. Asked once a process."""
    backend = BACKENDS[name]
    try:
        reason = backend.missing()
        if reason is not None:
            return reason
        result = run_program(backend, "result = input + 1", 1, limits=_PROBE_LIMITS)
    except SandboxError as error:
        return str(error)
    if (result.status, result.value) != (RunStatus.OK, 2):
        return f"a first program did not run in it: {result.status} {result.error}".strip()
    return None
