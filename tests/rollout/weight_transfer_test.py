"""Weights sent as tensors: what goes over the wire, and what becomes of an update that stops in the middle."""

import asyncio
import base64
import importlib.util
import io
import pickle
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from sage_jax.errors import ConfigError, EngineError, ServerRefusedError
from sage_jax.models import hf
from sage_jax.models.transformer import abstract_params
from sage_jax.rollout import GenerateRequest, SamplingParams, weight_transfer
from sage_jax.rollout.http_client import HttpOptions
from sage_jax.rollout.sglang import SglangEngine
from sage_jax.testing.faulty_server import VOCAB_SIZE, FaultyServer
from tests.rollout.conftest import MODEL

# What SGLang's reader lets a pickle of tensors name.
ALLOWED = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.storage", "_load_from_bytes"),
    ("collections", "OrderedDict"),
}


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        assert (module, name) in ALLOWED
        return super().find_class(module, name)


def read(body):
    """The tensors of a request, each of whose copies must be the same."""
    (payload,) = set(body["serialized_named_tensors"])
    return Reader(io.BytesIO(base64.b64decode(payload))).load()


@pytest.fixture(scope="module")
def weights():
    generator = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: generator.normal(size=leaf.shape).astype(np.float32), abstract_params(MODEL))


@pytest.fixture
def server():
    with FaultyServer() as made:
        yield made


@pytest.fixture
def engine(server, tmp_path, request):
    dtype = getattr(request, "param", "float32")

    def write(params, version):
        hf.save(tmp_path / str(version), MODEL, params, dtype=dtype)
        return tmp_path / str(version)

    made = SglangEngine(
        HttpOptions((server.url,), attempts=2, wait_s=0.01),
        vocab_size=VOCAB_SIZE,
        max_length=200,
        write_weights=write,
        weight_transfer="tensor",
    )
    yield made
    made.close()


def stored(tmp_path, version):
    return safetensors.numpy.load_file(tmp_path / str(version) / "model.safetensors")


@pytest.mark.parametrize("engine", ["float32", "bfloat16"], indirect=True)
def test_what_arrives_is_what_was_written(server, engine, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_transfer, "PART_BYTES", 8000)
    engine.update_weights(weights, 4)
    arrived = dict(pair for body in server.weight_bodies for pair in read(body))
    expected = stored(tmp_path, 4)
    assert arrived.keys() == expected.keys()
    for name, tensor in arrived.items():
        assert str(tensor.dtype) == f"torch.{expected[name].dtype.name}"
        np.testing.assert_array_equal(tensor.float().numpy(), expected[name].astype(np.float32))


def test_parts_are_small_and_only_the_last_makes_the_version(server, engine, weights, monkeypatch):
    monkeypatch.setattr(weight_transfer, "PART_BYTES", 8000)
    engine.update_weights(weights, 4)
    bodies = server.weight_bodies
    assert len(bodies) > 2
    sizes = [[tensor.nbytes for _, tensor in read(body)] for body in bodies]
    assert all(sum(part) <= 8000 or len(part) == 1 for part in sizes)
    assert [body["flush_cache"] for body in bodies] == [False] * (len(bodies) - 1) + [True]
    names = [body["weight_version"] for body in bodies]
    assert names == [f"{server.version}-partial"] * (len(bodies) - 1) + [server.version]
    assert server.version.endswith("-4")


def test_the_order_of_calls(server, engine, weights):
    engine.update_weights(weights, 4)
    session = ["/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update"]
    expected = ["/pause_generation", "/server_info", *session, "/model_info", "/continue_generation"]
    assert server.paths == expected
    assert not server.session_open


def test_every_rank_gets_a_copy(server, engine, weights):
    server.ranks = 3
    engine.update_weights(weights, 4)
    assert [len(body["serialized_named_tensors"]) for body in server.weight_bodies] == [3]


def test_an_update_that_someone_left_open_is_closed_first(server, engine, weights):
    server.session_open = True
    engine.update_weights(weights, 4)
    assert server.version.endswith("-4")
    assert not server.session_open


def test_weights_that_came_in_part_sample_no_turn_that_counts(server, engine, weights, monkeypatch):
    monkeypatch.setattr(weight_transfer, "PART_BYTES", 8000)
    engine.update_weights(weights, 4)
    whole = len(server.weight_bodies)
    server.tensor_calls = whole + 1
    with pytest.raises(ServerRefusedError, match="update_weights_from_tensor"):
        engine.update_weights(jax.tree.map(lambda leaf: leaf * 2, weights), 5)
    assert server.version.endswith("-5-partial")
    assert not server.paused
    server.tensor_calls = 1_000_000
    result = asyncio.run(engine.generate(GenerateRequest("e/0", "e", (1, 2, 3), SamplingParams(5, seed=7))))
    assert result.weight_version == 4
    assert len(server.weight_bodies) == whole + 2 + whole  # the second of version 5 was refused
    for first, again in zip(server.weight_bodies[:whole], server.weight_bodies[-whole:], strict=True):
        for (name, tensor), (name_again, tensor_again) in zip(read(first), read(again), strict=True):
            assert name == name_again
            np.testing.assert_array_equal(tensor.numpy(), tensor_again.numpy())


def test_a_folder_that_is_not_seen_makes_no_version(server, engine, weights, tmp_path):
    engine.update_weights(weights, 4)
    shutil.rmtree(tmp_path / "4")
    server.version = "default"  # it was restarted
    with pytest.raises(EngineError, match="no weights to send"):
        asyncio.run(engine.generate(GenerateRequest("e/0", "e", (1, 2, 3), SamplingParams(5, seed=7))))
    assert (server.version, server.paused) == ("default", False)


def test_another_way_is_refused():
    with pytest.raises(ConfigError, match="engine_weight_transfer='distributed': must be one of disk, tensor"):
        weight_transfer.transfer_named("distributed")


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"sage-jax\[torch\]"):
        weight_transfer.transfer_named("tensor")
