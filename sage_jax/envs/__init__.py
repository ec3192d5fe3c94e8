"""Environments: the benchmarks as text episodes, played in worker processes."""

from sage_jax.envs.base import EnvFactory, Environment, Observation, StepResult

__all__ = ["EnvFactory", "Environment", "Observation", "StepResult"]
