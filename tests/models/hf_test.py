"""Hugging Face folders: round trips, what is carried along, and every way a folder can be wrong."""

import dataclasses
import json
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.models import hf
from sage_jax.models.hf_config import from_hf, to_hf
from sage_jax.models.presets import PRESETS, preset
from sage_jax.models.sharding import make_mesh, param_shardings
from sage_jax.models.transformer import abstract_params, logical_axes

TINY = preset("tiny")
FAMILIES = {
    "qwen2": TINY,
    "qwen3": dataclasses.replace(TINY, qkv_bias=False, qk_norm=True, head_dim=16),
    "llama-biased": dataclasses.replace(TINY, o_bias=True),
    "llama": dataclasses.replace(TINY, qkv_bias=False, tie_embeddings=False),
}


def _params(config, dtype=np.float32):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(dtype), abstract_params(config))


def _assert_equal(one, two):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), one, two)


def _files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_shard_bytes", [10**9, 5_000])
def test_bfloat16_round_trip_is_byte_identical(family, max_shard_bytes, tmp_path):
    config = FAMILIES[family]
    params = _params(config, ml_dtypes.bfloat16)
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    hf.save(one, config, params, max_shard_bytes=max_shard_bytes)
    read_config, read = hf.load(one, dtype="bfloat16")
    assert read_config == config
    _assert_equal(read, params)
    hf.save(two, config, read, max_shard_bytes=max_shard_bytes)
    assert _files(one) == _files(two)
    assert (len(_files(one)) > 5) == (max_shard_bytes == 5_000)
    hf.save(three, config, hf.load(one, dtype="float32")[1], max_shard_bytes=max_shard_bytes)
    assert _files(one) == _files(three)


def test_float32_round_trip_is_exact(tmp_path):
    params = _params(TINY)
    hf.save(tmp_path, TINY, params, dtype="float32")
    _assert_equal(hf.load(tmp_path)[1], params)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "float32"


def test_no_file_exceeds_the_shard_limit_and_the_index_is_complete(tmp_path):
    hf.save(tmp_path, TINY, _params(TINY), max_shard_bytes=10_000)
    index = json.loads((tmp_path / hf.INDEX).read_text())
    sizes = 0
    for file in set(index["weight_map"].values()):
        tensors = safetensors.numpy.load_file(tmp_path / file)
        assert sum(t.nbytes for t in tensors.values()) <= 10_000
        assert all(index["weight_map"][name] == file for name in tensors)
        sizes += sum(t.nbytes for t in tensors.values())
    assert sizes == index["metadata"]["total_size"]


def test_saving_again_in_one_file_leaves_no_stale_shards(tmp_path):
    hf.save(tmp_path, TINY, _params(TINY), max_shard_bytes=10_000)
    hf.save(tmp_path, TINY, _params(TINY))
    assert set(_files(tmp_path)) == {"config.json", hf.SINGLE}


def test_tokenizer_generation_config_and_other_keys_are_carried(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    hf.save(source, TINY, _params(TINY))
    values = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**values, "eos_token_id": 7, "dtype": "float32"}))
    (source / "tokenizer.json").write_text('{"kept": "byte for byte"}')
    (source / "generation_config.json").write_text('{"temperature": 0.7}')
    (source / "notes.txt").write_text("not ours")
    hf.save(target, TINY, _params(TINY), source=source)
    assert (target / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (target / "generation_config.json").is_file()
    assert not (target / "notes.txt").exists()
    written = json.loads((target / "config.json").read_text())
    assert written["eos_token_id"] == 7
    assert written["torch_dtype"] == "bfloat16"
    assert "dtype" not in written


def _on_one_device(config):
    return param_shardings(logical_axes(config), abstract_params(config), make_mesh(devices=jax.devices()[:1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_loading_onto_a_mesh_gives_the_same(family, tmp_path):
    config = FAMILIES[family]
    hf.save(tmp_path, config, _params(config), dtype="float32", max_shard_bytes=5_000)
    shardings = _on_one_device(config)
    _, read = hf.load(tmp_path, shardings=shardings)
    _assert_equal(read, hf.load(tmp_path)[1])
    assert jax.tree.map(lambda leaf: leaf.sharding, read) == shardings


def test_loading_onto_a_mesh_holds_one_stored_tensor_at_a_time(tmp_path):
    config = preset("tiny", hidden_size=64, intermediate_size=16384, num_layers=6)
    hf.save(tmp_path, config, _params(config, ml_dtypes.bfloat16))
    tensor = 64 * 16384 * 4  # bytes in float32: one layer's gate, up or down
    hf.load(tmp_path, shardings=_on_one_device(config))  # compiles
    tracemalloc.start()
    hf.load(tmp_path, shardings=_on_one_device(config))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    hf.load(tmp_path)
    _, stacked = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # As stored, turned, and on its way to the device; six layers of it are one stacked parameter.
    assert peak < 3 * tensor
    assert stacked > 6 * tensor


def test_the_stored_dtype_is_that_of_the_folder(tmp_path):
    for name, told in (("bfloat16", "bfloat16"), ("float32", "float32"), ("float16", "float32")):
        (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": name}))
        assert hf.stored_dtype(tmp_path) == told
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    assert hf.stored_dtype(tmp_path) == "bfloat16"


def test_a_layout_that_cuts_inside_a_head_is_refused():
    with pytest.raises(ConfigError, match="cuts another axis than the first"):
        hf._flat_slice((4, 8), (slice(None), slice(0, 4)))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}]
)
def test_config_survives_both_layouts_of_rope_settings(name, scaling):
    config = dataclasses.replace(PRESETS[name], rope_scaling=scaling)
    values = to_hf(config, "bfloat16")
    assert from_hf(values, "test") == config
    old = {k: v for k, v in values.items() if k != "rope_parameters"}
    assert from_hf(old, "test") == config
    new = {k: v for k, v in values.items() if k not in ("rope_theta", "rope_scaling")}
    assert from_hf(new, "test") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ],
)
def test_configs_the_decoder_cannot_run_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        from_hf({**to_hf(TINY, "bfloat16"), **change}, "config.json")


def test_switches_that_no_family_has_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="qk_norm"):
        hf.save(tmp_path, dataclasses.replace(TINY, qk_norm=True), {})


def test_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="dtype='float16'"):
        hf.save(tmp_path, TINY, _params(TINY), dtype="float16")


def test_incomplete_parameters_are_refused_before_anything_is_written(tmp_path):
    params = _params(TINY)
    del params["final_norm"]
    with pytest.raises(CheckpointError, match="final_norm.scale is missing"):
        hf.save(tmp_path / "new", TINY, params)
    assert not (tmp_path / "new").exists()


def _rewrite(folder, change):
    """Loads the single weight file, applies `change` to the dict of tensors, writes it back."""
    tensors = safetensors.numpy.load_file(folder / hf.SINGLE)
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / hf.SINGLE)


def _set(name, value):
    return lambda folder: _rewrite(folder, lambda tensors: tensors.update({name: value}))


def _pop(name):
    return lambda folder: _rewrite(folder, lambda tensors: tensors.pop(name))


def _cut(folder):
    data = (folder / hf.SINGLE).read_bytes()
    (folder / hf.SINGLE).write_bytes(data[:-10])


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: is missing"),
    "config not JSON": (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
    "config a list": (lambda folder: (folder / "config.json").write_text("[]"), "must hold a JSON object"),
    "no weights": (lambda folder: (folder / hf.SINGLE).unlink(), "has neither"),
    "cut short": (_cut, r"model.safetensors: cannot be read"),
    "tensor missing": (_pop("model.layers.1.mlp.up_proj.weight"), "layers.1.mlp.up_proj.weight is missing"),
    "wrong shape": (_set("model.norm.weight", np.ones(5, np.float32)), r"model.norm.weight has shape \(5,\)"),
    "wrong dtype": (_set("model.norm.weight", np.ones(32, np.int32)), "model.norm.weight has dtype I32"),
    "unknown tensor": (_set("model.layers.2.extra", np.ones(1, np.float32)), "layers.2.extra has no place"),
    "index without map": (lambda folder: (folder / hf.INDEX).write_text("{}"), "has no weight_map"),
    "index out of folder": (
        lambda folder: (folder / hf.INDEX).write_text('{"weight_map": {"a": "../b.safetensors"}}'),
        "must be a file of this folder",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_refused_by_file_and_tensor(damage, tmp_path):
    hf.save(tmp_path, TINY, _params(TINY))
    apply, message = DAMAGES[damage]
    apply(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        hf.load(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    hf.save(tmp_path, TINY, _params(TINY), max_shard_bytes=10_000)
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=gone.name):
        hf.load(tmp_path)


def test_a_tied_model_that_stores_its_head_again_loads(tmp_path):
    params = _params(TINY)
    hf.save(tmp_path, TINY, params, dtype="float32")
    _set("lm_head.weight", params["embed"])(tmp_path)
    assert "head" not in hf.load(tmp_path)[1]
