"""What top-p, top-k and choices take from the distribution that tokens are drawn from.

An engine with probabilities p draws from mu(a) = p(a) / Z among the tokens that truncation keeps, whose mass is
Z = sum of p over them, and reports log p and log mu of each token: Z = exp(log p - log mu). The importance ratio of the
trainer's policy pi to what was drawn from is therefore pi / mu = Z pi / p. Its first factor is known exactly, and as it
is at most 1 needs no cap; the second one is the weight that corrects for numerics (`losses.policy`). The clipped
surrogate is proportional to the advantage, so that Z can be multiplied into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from sage_jax.errors import DataError
from sage_jax.types import Trajectory, Turn

KeptLevel = Literal["token", "sequence"]


def kept_mass(turns: Sequence[Turn], level: KeptLevel) -> Float[np.ndarray, " L"]:
    """Returns Z of each token of one context; at level "sequence" the product over its trained tokens.

    Places of prompts and of turns without an advantage, which are not trained on, have 1.

    Raises:
      DataError: a trained turn lacks the log-probabilities it was drawn with.
    """
    logs = np.zeros(sum(len(turn.prompt_ids) + len(turn.output_ids) for turn in turns))
    trained = np.zeros(len(logs), bool)
    start = 0
    for number, turn in enumerate(turns):
        start += len(turn.prompt_ids)
        place = slice(start, start := start + len(turn.output_ids))
        if turn.advantage is not None:
            if turn.sampled_logprobs is None:
                raise DataError(f"turn {number}: no sampled_logprobs from its engine; set importance_kept=False")
            trained[place], logs[place] = True, _log_kept(turn)
    if level == "sequence":
        logs[trained] = logs.sum()
    return np.exp(logs).astype(np.float32)


def left_out(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Returns rollout/left_out, the mean of 1 - Z over sampled tokens; nothing where no engine tells."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns if turn.sampled_logprobs]
    if not turns:
        return {}
    return {"rollout/left_out": float(np.mean(-np.expm1(np.concatenate([_log_kept(turn) for turn in turns]))))}


def _log_kept(turn: Turn) -> Float[np.ndarray, " T"]:
    """Returns log Z of each output token; above 0 by rounding alone."""
    return np.minimum(np.subtract(turn.logprobs, turn.sampled_logprobs), 0.0)
