"""WebWalkerQA: questions about one website, answered by walking it; the public questions, and a generated twin."""

from sage_jax.envs.webwalker.dataset import read_questions
from sage_jax.envs.webwalker.env import WebwalkerEnv, WebwalkerFactory
from sage_jax.envs.webwalker.questions import TwinOptions, make_tasks

__all__ = ["TwinOptions", "WebwalkerEnv", "WebwalkerFactory", "make_tasks", "read_questions"]
