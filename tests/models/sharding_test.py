"""The rules table, and the same numbers on one device and on eight."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from sage_jax.errors import ConfigError
from sage_jax.models.presets import preset
from sage_jax.models.sharding import RULES, constrain, make_mesh, param_shardings, partition_spec
from sage_jax.models.transformer import abstract_params, logical_axes

_EIGHT_DEVICES = """
import sys

import jax
import jax.numpy as jnp
import numpy as np

from sage_jax.models import hf
from sage_jax.models.presets import preset
from sage_jax.models.sharding import make_mesh, param_shardings, placer, row_sharding
from sage_jax.models.transformer import forward, head_weights, init_params, logical_axes

assert jax.device_count() == 8
config = preset("tiny")
axes = logical_axes(config)
# Kernels large enough that every part matters; norm scales stay 1 (at 10 a last-bit change moves the gradient by 3 %).
params = init_params(config, jax.random.key(0))
params = jax.tree.map_with_path(lambda path, x: x if path[-1].key == "scale" else 10 * x, params)
ids = jax.random.randint(jax.random.key(1), (4, 12), 0, config.vocab_size)
positions = jnp.broadcast_to(jnp.arange(12) % 6, ids.shape)
segments = jnp.broadcast_to(1 + jnp.arange(12) // 6, ids.shape)
hf.save(sys.argv[1], config, params, dtype="float32")


def loss(params, ids, positions, segments):
    hidden = forward(config, params, ids, positions, segments, remat="dots")
    return jnp.mean(jax.nn.logsumexp(hidden @ head_weights(params).T, -1))


step = jax.jit(jax.value_and_grad(loss))
value, gradient = step(params, ids, positions, segments)
assert all(jnp.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(gradient) if leaf.ndim > 3)
mesh = make_mesh(data=-1, fsdp=2, tensor=2)
with jax.set_mesh(mesh):
    laid = jax.device_put(params, param_shardings(axes, params, mesh))
    batch = jax.device_put((ids, positions, segments), row_sharding(mesh))
    lowered = jax.jit(jax.value_and_grad(loss)).lower(laid, *batch)
    other, other_gradient = lowered.compile()(laid, *batch)
assert "sharding_constraint" in lowered.as_text()
up = laid["layers"]["mlp"]["up"]["kernel"]
assert up.addressable_shards[0].data.size * 4 == up.size
np.testing.assert_allclose(other, value, atol=1e-5)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradient, other_gradient)
_, loaded = hf.load(sys.argv[1], place=placer(axes, mesh))
assert loaded["embed"].sharding == laid["embed"].sharding
jax.tree.map(np.testing.assert_array_equal, loaded, params)
print("same on eight devices")
"""


def test_eight_devices_give_the_loss_and_gradients_of_one(tmp_path):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", _EIGHT_DEVICES, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same on eight devices" in done.stdout
    assert "Involuntary full rematerialization" not in done.stderr  # the partitioner found every layout change


def test_one_device_mesh_works_and_leaves_values_alone():
    mesh = make_mesh(devices=jax.devices()[:1])
    assert dict(mesh.shape) == {"data": 1, "fsdp": 1, "tensor": 1}
    x = np.arange(6.0).reshape(2, 3)
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(constrain(x, "rows", "act_embed"), x)


def test_rules_cut_what_divides_and_leave_the_rest_whole():
    sizes = {"data": 2, "fsdp": 4, "tensor": 2}
    assert partition_spec(("embed", "heads", "head_dim"), (64, 4, 8), sizes) == PartitionSpec("fsdp", "tensor", None)
    assert partition_spec(("embed", "kv_heads", "head_dim"), (64, 3, 8), sizes) == PartitionSpec("fsdp", None, None)
    assert partition_spec(("rows", "length"), (8, 5), sizes) == PartitionSpec(("data", "fsdp"), None)
    assert partition_spec(("rows", "length"), (8, 5), {"fsdp": 4}) == PartitionSpec("fsdp", None)
    assert partition_spec((None, "vocab"), (3, 10), {"tensor": 1}) == PartitionSpec(None, None)


def test_an_axis_without_a_rule_is_an_error():
    with pytest.raises(KeyError, match="width"):
        partition_spec(("width",), (4,), {})


def test_every_logical_name_of_the_model_has_a_rule():
    config = preset("tiny", qk_norm=True, tie_embeddings=False)
    names = jax.tree.leaves(logical_axes(config), is_leaf=lambda node: isinstance(node, tuple))
    assert {name for axes in names for name in axes} <= set(RULES)
    shardings = param_shardings(logical_axes(config), abstract_params(config), make_mesh(devices=jax.devices()[:1]))
    assert jax.tree.structure(shardings) == jax.tree.structure(abstract_params(config))


@pytest.mark.parametrize("sizes", [(3, 1, 1), (0, 1, 1), (-1, -1, 1), (1, 1, 2)])
def test_meshes_that_do_not_fit_the_devices_are_refused(sizes):
    with pytest.raises(ConfigError, match="mesh data="):
        make_mesh(*sizes, devices=jax.devices()[:1])
