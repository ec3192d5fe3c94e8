"""Environments in this process, with the interface of a pool of worker processes."""

from __future__ import annotations

from sage_jax.envs.base import EnvFactory, Environment, Observation, StepResult
from sage_jax.types import Task


class LocalPool:
    """Plays environments where it stands; the factory stays the caller's to close."""

    def __init__(self, factory: EnvFactory):
        """Takes what makes environments."""
        self._factory = factory
        self._envs: dict[str, Environment] = {}

    async def reset(self, env_id: str, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts an episode under a name."""
        self._envs[env_id] = self._factory()
        return self._envs[env_id].reset(task, seed, expert=expert)

    async def step(self, env_id: str, action: str) -> StepResult:
        """Plays an action."""
        return self._envs[env_id].step(action)

    async def release(self, env_id: str) -> None:
        """Forgets an episode."""
        self._envs.pop(env_id, None)
