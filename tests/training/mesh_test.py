"""The same update on one device, on every mesh of eight, and in two processes."""

import functools
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from sage_jax.checkpoints import Checkpointer
from sage_jax.models import hf, init_params, preset
from sage_jax.models.sharding import MESH_AXES
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.state import abstract_on_mesh, abstract_state

WORKER = pathlib.Path(__file__).with_name("mesh_worker.py")
MODEL = preset("tiny", num_heads=8, num_kv_heads=4, tie_embeddings=False)
TOLERANCE = 1e-5
MIXED = "fsdp:2,sequence:2,tensor:2"


def factorisations(devices):
    """Returns every mesh of `devices` devices, axes of size 1 left out."""
    sizes = [1 << power for power in range(devices.bit_length())]
    meshes = [(a, b, c, d) for a in sizes for b in sizes for c in sizes for d in sizes if a * b * c * d == devices]
    return [",".join(f"{axis}:{n}" for axis, n in zip(MESH_AXES, mesh, strict=True) if n > 1) for mesh in meshes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model whose layers all matter: at the usual size of kernels the head would be nearly all."""
    folder = tmp_path_factory.mktemp("mesh")
    params = init_params(MODEL, jax.random.key(0))
    params = jax.tree.map_with_path(lambda path, leaf: leaf if path[-1].key == "scale" else 10 * leaf, params)
    hf.save(folder / "model", MODEL, params, dtype="float32")
    return folder


def start(folder, meshes, *arguments, devices=8):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(WORKER), str(folder), ";".join(meshes), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def finish(process):
    out, err = process.communicate()
    assert process.returncode == 0, err[-3000:]
    assert "done" in out
    assert "Involuntary full rematerialization" not in err  # the partitioner found every change of layout


def results(folder, text):
    with np.load(folder / f"{text}.npz") as found:
        return {name: found[name] for name in found.files}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one.keys() - {"read", "largest_read"}:
        np.testing.assert_allclose(other[name], one[name], atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)


@pytest.fixture(scope="module")
def one_device(folder):
    finish(start(folder, ["none"], devices=1))
    found = results(folder, "none")
    # The three updates do something, with every loss term in play.
    assert found["0 update/grad_norm"] > 0.1
    assert found["2 loss/kl"] > 1e-3
    assert abs(found["2 loss/total"] - found["0 loss/total"]) > 1e-3
    return found


def test_one_device_and_eight_are_the_same(folder, one_device):
    finish(start(folder, [MIXED]))
    found = results(folder, MIXED)
    assert_same(one_device, found)
    # Each device reads its own quarter of a kernel, and the file is read once for each copy along `sequence`.
    assert found["largest_read"] * 4 == one_device["largest_read"]
    assert found["read"] < 2.2 * one_device["read"]


def test_what_eight_devices_save_one_device_restores(folder, one_device):
    if not (folder / f"checkpoints {MIXED}").exists():
        finish(start(folder, [MIXED]))
    with Checkpointer(folder / f"checkpoints {MIXED}") as checkpointer:
        optimizer = make_optimizer(OptimizerOptions())
        state = checkpointer.restore({"state": abstract_state(abstract_on_mesh(MODEL), optimizer)}).arrays["state"]
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(state)} == {1}
    _, exported = hf.load(folder / f"export {MIXED}")
    jax.tree.map(np.testing.assert_array_equal, state.params, exported)
    for path, leaf in jax.tree.leaves_with_path(state):
        np.testing.assert_allclose(leaf, one_device[jax.tree_util.keystr(path)], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_factorisation_of_eight_is_the_same(folder, one_device):
    meshes = factorisations(8)
    assert len(meshes) == 20  # three factors of two over four axes
    finish(start(folder, meshes))
    for text in meshes:
        assert_same(one_device, results(folder, text))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_adapters_and_shared_prefixes_are_the_same(folder):
    meshes = [f"adapters {mesh}" for mesh in ("none", MIXED, "data:2,fsdp:4")]
    finish(start(folder, meshes[:1], devices=1))
    finish(start(folder, meshes[1:]))
    one = results(folder, meshes[0])
    assert one["2 update/grad_norm"] > 0.01
    assert np.abs(one[".params['layers']['mlp']['down']['lora_b']"]).max() > 1e-3
    for mesh in meshes[1:]:
        assert_same(one, results(folder, mesh))


@functools.cache
def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mesh", ["data:2,fsdp:4", "fsdp:2,sequence:2,tensor:2"])
def test_two_processes_are_the_same(folder, one_device, mesh, tmp_path):
    (tmp_path / "model").symlink_to(folder / "model")
    processes = [start(tmp_path, [mesh], number, 2, free_port(), devices=4) for number in range(2)]
    for process in processes:
        finish(process)
    found = results(tmp_path, mesh)
    assert_same(one_device, found)
    _, exported = hf.load(tmp_path / f"export {mesh}")
    np.testing.assert_array_equal(exported["embed"], found[".params['embed']"])
