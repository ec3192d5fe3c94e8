"""GAIA: questions that take files, pages and calculations; a user's own copy, and a generated twin."""

from sage_jax.envs.gaia.dataset import read_gaia
from sage_jax.envs.gaia.env import GaiaEnv, GaiaFactory
from sage_jax.envs.gaia.questions import TwinOptions, make_tasks
from sage_jax.envs.gaia.scoring import question_score

__all__ = ["GaiaEnv", "GaiaFactory", "TwinOptions", "make_tasks", "question_score", "read_gaia"]
