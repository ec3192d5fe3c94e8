"""ALFWorld on its real engine: games, episodes, the scripted expert, and a generator of new games."""

from sage_jax.envs.alfworld.env import AlfworldEnv, AlfworldFactory
from sage_jax.envs.alfworld.game import FAMILIES

__all__ = ["FAMILIES", "AlfworldEnv", "AlfworldFactory"]
