"""Runs untrusted programs: JSON in, JSON out, limits, and nothing of the host in sight."""

from sage_jax.sandbox.backends import BACKENDS, Backend, Unsafe
from sage_jax.sandbox.choose import choose_backend, probe
from sage_jax.sandbox.process import SandboxedProcess
from sage_jax.sandbox.run import run_program
from sage_jax.sandbox.spec import Access, Limits, RunResult, RunStatus

__all__ = [
    "BACKENDS",
    "Access",
    "Backend",
    "Limits",
    "RunResult",
    "RunStatus",
    "SandboxedProcess",
    "Unsafe",
    "choose_backend",
    "probe",
    "run_program",
]
