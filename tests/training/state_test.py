"""Optimizer state lies where its parameters lie."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.state import TrainState, abstract_state, state_layout

MESH = AbstractMesh((2, 4), ("fsdp", "tensor"))


def shape(*sizes, spec=None):
    sharding = None if spec is None else NamedSharding(MESH, spec)
    return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=sharding)


PARAMS = {"kernel": shape(8, 16, spec=P("fsdp", "tensor")), "norm": {"scale": shape(8, spec=P(None))}}


def specs(tree):
    """Returns {path: spec}."""
    return {jax.tree_util.keystr(path): leaf.spec for path, leaf in jax.tree.leaves_with_path(tree)}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_lie_like_their_parameters(name):
    found = specs(state_layout(PARAMS, make_optimizer(OptimizerOptions(name=name))))
    kernels = [spec for path, spec in found.items() if path.endswith("['kernel']")]
    assert len(kernels) >= 2  # the parameter and at least one moment
    assert set(kernels) == {P("fsdp", "tensor")}
    assert {spec for path, spec in found.items() if "kernel" not in path} <= {P(), P(None)}


def test_sums_over_an_axis_keep_the_cut_of_the_other():
    found = specs(state_layout(PARAMS, optax.adafactor(1e-3, min_dim_size_to_factor=2)))
    rows = next(spec for path, spec in found.items() if "v_row" in path and "kernel" in path)
    columns = next(spec for path, spec in found.items() if "v_col" in path and "kernel" in path)
    assert {rows, columns} == {P("fsdp"), P("tensor")}


def test_abstract_state_has_the_shapes_of_a_real_one():
    optimizer = make_optimizer(OptimizerOptions())
    abstract = abstract_state(PARAMS, optimizer)
    real = TrainState.create(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), PARAMS), optimizer)
    assert jax.tree.structure(abstract) == jax.tree.structure(real)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), real
    )


def test_without_a_mesh_there_is_no_layout():
    params = {"kernel": jnp.zeros((2, 2))}
    assert state_layout(params, make_optimizer(OptimizerOptions())) is None
