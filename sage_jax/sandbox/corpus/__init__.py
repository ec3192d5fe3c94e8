"""Hostile programs, by what they attack: what `python -m sage_jax.sandbox.check` runs in every backend."""

from sage_jax.sandbox.corpus.attack import Attack
from sage_jax.sandbox.corpus.files import DISK, READ, WRITE
from sage_jax.sandbox.corpus.interpreter import INTERPRETER, RUNNER
from sage_jax.sandbox.corpus.network import NETWORK
from sage_jax.sandbox.corpus.processes import PROCESSES
from sage_jax.sandbox.corpus.resources import CPU, MEMORY_ATTACKS, OUTPUT_ATTACKS

CORPUS: dict[str, tuple[Attack, ...]] = {
    "reading files": READ,
    "writing files": WRITE,
    "disk": DISK,
    "network": NETWORK,
    "processes": PROCESSES,
    "memory": MEMORY_ATTACKS,
    "cpu": CPU,
    "output": OUTPUT_ATTACKS,
    "interpreter": INTERPRETER,
    "runner": RUNNER,
}

__all__ = ["CORPUS", "Attack"]
