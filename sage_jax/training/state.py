"""What an update changes: parameters, optimizer state, step counter; and how they lie on a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from sage_jax.models.config import ModelConfig
from sage_jax.models.sharding import param_shardings
from sage_jax.models.transformer import abstract_params, logical_axes


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
        """Returns the state at step 0; on a mesh, optimizer state lies where its parameters do.

        Args:
          params: initial parameters.
          optimizer: see `optimizer.make_optimizer`.
          copy: True gives the state its own buffers. An update step donates the state's buffers, so without the copy
            `params` (perhaps also the reference policy) is gone after the first update.
        """
        params = jax.tree.map(jnp.array if copy else jnp.asarray, params)

        def start(params):
            return optimizer.init(params), jnp.zeros((), jnp.int32)

        if (layout := state_layout(params, optimizer)) is not None:
            start = jax.jit(start, out_shardings=(layout.opt_state, layout.step))
        opt_state, step = start(params)
        return cls(params=params, opt_state=opt_state, step=step)


def state_layout(params: Any, optimizer: optax.GradientTransformation) -> TrainState | None:
    """Returns the sharding of every leaf of a state, or None when the parameters are not on a mesh.

    Args:
      params: arrays, or ShapeDtypeStructs that have a sharding.
      optimizer: the optimizer.
    """
    layout = jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), params)
    meshes = [leaf.mesh for leaf in jax.tree.leaves(layout) if isinstance(leaf, NamedSharding) and leaf.mesh.size > 1]
    if not meshes:
        return None
    whole = NamedSharding(meshes[0], PartitionSpec())
    opt_state = jax.eval_shape(optimizer.init, params)
    return TrainState(params=layout, opt_state=_beside(opt_state, params, whole), step=whole)


def abstract_on_mesh(model: ModelConfig, mesh: Mesh | None = None) -> Any:
    """Returns the parameters' shapes with their place: on `mesh`, or the mesh that is set, or one device."""
    mesh = mesh or jax.sharding.get_mesh()
    shapes = abstract_params(model)
    if mesh.empty:
        here = SingleDeviceSharding(jax.devices()[0])
        layout = jax.tree.map(lambda _: here, shapes)
    else:
        layout = param_shardings(logical_axes(model), shapes, mesh)
    return _placed(shapes, layout)


def abstract_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Returns the state's shapes, dtypes and shardings without allocating any; `params` are ShapeDtypeStructs."""
    state = jax.eval_shape(lambda params: TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32)), params)
    layout = state_layout(params, optimizer)
    if layout is None:
        here = jax.tree.leaves(params)[0].sharding
        if isinstance(here, NamedSharding):
            here = NamedSharding(here.mesh, PartitionSpec())
        layout = jax.tree.map(lambda _: here, state)
    return _placed(state, layout)


def _placed(shapes: Any, layout: Any) -> Any:
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), shapes, layout)


def _beside(opt_state: Any, params: Any, whole: Sharding) -> Any:
    """Lays every leaf of an optimizer's state out as the parameter whose path its own path ends with."""
    leaves = {tuple(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def place(path: Sequence[Any], leaf: Any) -> Sharding:
        for start in range(len(path)):
            if (param := leaves.get(tuple(path[start:]))) is not None:
                return _cut_like(leaf.shape, param, whole)
        return whole

    return jax.tree_util.tree_map_with_path(place, opt_state)


def _cut_like(shape: Sequence[int], param: Any, whole: Sharding) -> Sharding:
    """Lays out an array that has some of a parameter's axes (Adafactor keeps a sum over one of them)."""
    spec = (*param.sharding.spec, *(None,) * (len(param.shape) - len(param.sharding.spec)))
    axes = iter(zip(param.shape, spec, strict=True))
    entries = [next((entry for size, entry in axes if size == wanted), "missing") for wanted in shape]
    if "missing" in entries:
        return whole
    return NamedSharding(param.sharding.mesh, PartitionSpec(*entries))
