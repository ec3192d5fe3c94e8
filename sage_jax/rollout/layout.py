"""How the embedded engine lies on several devices, and the shapes of its programs for compiling them unseen.

Weights are cut over the mesh axis `tensor` alone and the cache over its key heads, so that a token costs one sum over
the devices for each half of a layer; the other axes of a learner's mesh hold further copies.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sage_jax.models import ModelConfig, abstract_params, logical_axes, unstack_layers
from sage_jax.models.sharding import make_mesh, param_shardings
from sage_jax.rollout.programs import DecodeRows, EngineConfig, PrefillRows, empty_cache
from sage_jax.rollout.turns import decode_batch, prefill_batch


def engine_mesh(mesh: Mesh) -> Mesh:
    """Returns the mesh of one engine: the first group of the learner's mesh along `tensor`."""
    group = mesh.devices.reshape(-1, mesh.shape["tensor"])[0]
    return make_mesh(data=1, tensor=len(group), devices=list(group))


def weight_shardings(model: ModelConfig, mesh: Mesh) -> Any:
    """Returns the sharding of every parameter on an engine's mesh, layers unstacked."""

    def below(at: NamedSharding) -> NamedSharding:
        return NamedSharding(at.mesh, PartitionSpec(*at.spec[1:]))

    stacked = param_shardings(logical_axes(model), abstract_params(model), mesh)
    return {**stacked, "layers": (jax.tree.map(below, stacked["layers"]),) * model.num_layers}


def cache_shardings(cache: Any, mesh: Mesh) -> Any:
    """Returns the sharding of keys and values (`kv_cache.empty_cache`): cut along their heads where that divides."""

    def place(leaf: Any) -> NamedSharding:
        cut = len(leaf.shape) == 4 and leaf.shape[1] % mesh.shape["tensor"] == 0
        return NamedSharding(mesh, PartitionSpec(None, "tensor" if cut else None))

    return jax.tree.map(place, cache)


def abstract_engine(model: ModelConfig, config: EngineConfig, mesh: Mesh) -> tuple[Any, Any, PrefillRows, DecodeRows]:
    """Returns shapes and shardings of weights (in the compute dtype), cache, and the rows of both programs."""

    def laid(shape: Any, sharding: NamedSharding, dtype: Any = None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, dtype or shape.dtype, sharding=sharding)

    whole = NamedSharding(mesh, PartitionSpec())
    shapes = jax.eval_shape(unstack_layers, abstract_params(model))
    weights = jax.tree.map(lambda leaf, at: laid(leaf, at, model.dtype), shapes, weight_shardings(model, mesh))
    cache = jax.eval_shape(lambda: empty_cache(model, config))
    cache = jax.tree.map(laid, cache, cache_shardings(cache, mesh))
    batches = prefill_batch(config, []), decode_batch(config, model.vocab_size, [])
    return weights, cache, *jax.tree.map(lambda array: laid(array, whole), batches)
