"""Reinforcement learning of skills for LLM agents, in JAX/Flax."""

__version__ = "0.1.0"
