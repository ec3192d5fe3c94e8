"""The rules table and the meshes that are refused; tests/training/mesh_test.py runs on eight devices."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from sage_jax.errors import ConfigError
from sage_jax.models.presets import preset
from sage_jax.models.sharding import RULES, constrain, make_mesh, param_shardings, parse_mesh, partition_spec
from sage_jax.models.transformer import abstract_params, logical_axes


def test_one_device_mesh_works_and_leaves_values_alone():
    mesh = make_mesh(devices=jax.devices()[:1])
    assert dict(mesh.shape) == {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}
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


@pytest.mark.parametrize("sizes", [(3, 1, 1, 1), (0, 1, 1, 1), (-1, -1, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)])
def test_meshes_that_do_not_fit_the_devices_are_refused(sizes):
    with pytest.raises(ConfigError, match="mesh data="):
        make_mesh(*sizes, devices=jax.devices()[:1])


def test_chips_that_are_not_connected_in_such_a_way_are_named(monkeypatch):
    def refuse(*_, **__):
        raise NotImplementedError("no assignment for logical axis 2")

    monkeypatch.setattr(jax, "make_mesh", refuse)
    with pytest.raises(ConfigError, match=r"^mesh data=.*not connected in such a way: no assignment for"):
        make_mesh(devices=jax.devices()[:1])


def test_a_mesh_is_read_from_text():
    assert parse_mesh("") == {}
    assert parse_mesh("fsdp:8,tensor:4") == parse_mesh("fsdp:8+tensor:4") == {"fsdp": 8, "tensor": 4}


@pytest.mark.parametrize("text", ["fsdp", "fsdp:x", "fsdp:2,fsdp:2", "pipe:2", "fsdp:-1", "fsdp:0"])
def test_a_wrong_mesh_names_its_part(text):
    with pytest.raises(
        ConfigError, match="axis:size, joined by ',' or '\\+', with each of data, fsdp, sequence, tensor"
    ):
        parse_mesh(text)
