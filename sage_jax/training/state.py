"""What an update changes: parameters, optimizer state, step counter."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The learner's state, a pytree.

    Attributes:
      params: parameter pytree (nested dicts of arrays).
      opt_state: the optimizer's state.
      step: int32 scalar, updates applied so far.
    """

    params: Any
    opt_state: Any
    step: jax.Array

    @classmethod
    def create(cls, params: Any, optimizer: optax.GradientTransformation, *, copy: bool = True) -> TrainState:
        """Returns the state at step 0.

        Args:
          params: initial parameters.
          optimizer: see `optimizer.make_optimizer`.
          copy: True gives the state its own buffers. An update step donates the state's buffers, so without the copy
            `params` (perhaps also the reference policy) is gone after the first update.
        """
        params = jax.tree.map(jnp.array if copy else jnp.asarray, params)
        return cls(params=params, opt_state=optimizer.init(params), step=jnp.zeros((), jnp.int32))
