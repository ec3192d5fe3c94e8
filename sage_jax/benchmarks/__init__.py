"""What a run must know of a benchmark: its tasks, environments, expert and configuration keys."""

from sage_jax.benchmarks.base import Benchmark
from sage_jax.benchmarks.registry import BENCHMARKS, GROUPS

__all__ = ["BENCHMARKS", "GROUPS", "Benchmark"]
