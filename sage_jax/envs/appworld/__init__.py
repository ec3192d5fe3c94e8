"""AppWorld: tasks for an agent that writes Python against the APIs of everyday apps."""

from sage_jax.envs.appworld.dataset import load_tasks, scenario_of, solution_of
from sage_jax.envs.appworld.env import AppworldEnv, AppworldFactory
from sage_jax.envs.appworld.home import Home, default_home

__all__ = ["AppworldEnv", "AppworldFactory", "Home", "default_home", "load_tasks", "scenario_of", "solution_of"]
