"""Generation engines. The JAX engine is imported from `sage_jax.rollout.embedded`: importing this costs no jax."""

from sage_jax.rollout.engine import Engine, GenerateRequest, Generation, SamplingParams, VersionSpan

__all__ = ["Engine", "GenerateRequest", "Generation", "SamplingParams", "VersionSpan"]
