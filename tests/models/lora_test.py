"""Adapters: fresh ones change nothing, merged equals unmerged, folders hold what PEFT expects."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from sage_jax import setting_groups
from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.models import forward, head_weights, hf, init_params
from sage_jax.models.attention import IMPLEMENTATIONS
from sage_jax.models.config import LORA_TARGETS, LoraConfig, ModelConfig
from sage_jax.models.lora import init_adapters, join, load_adapter, merge, save_adapter, split
from sage_jax.models.transformer import abstract_params, logical_axes

BASE = ModelConfig(
    vocab_size=13,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    qkv_bias=True,
    tie_embeddings=True,
)
MODEL = dataclasses.replace(BASE, lora=LoraConfig(rank=3, alpha=6.0))
IDS = np.arange(10).reshape(1, 10)


@functools.cache
def base():
    return jax.tree.map(lambda leaf: 10 * leaf if leaf.ndim > 2 else leaf, init_params(BASE, jax.random.key(0)))


@functools.cache
def trained():
    """Adapters whose B is no longer zero."""
    fresh = init_adapters(MODEL, jax.random.key(1))
    return jax.tree.map(lambda leaf: 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), fresh)


@functools.partial(jax.jit, static_argnames="model")
def logits(params, model):
    return forward(model, params, IDS, IDS, np.ones_like(IDS)) @ head_weights(params).T


def test_fresh_adapters_change_nothing():
    joined = join(init_adapters(MODEL, jax.random.key(1)), base())
    np.testing.assert_array_equal(logits(joined, MODEL), logits(base(), BASE))


def test_merged_equals_unmerged_and_differs_from_the_base():
    joined = join(trained(), base())
    merged = merge(MODEL, joined)
    assert jax.tree.structure(merged) == jax.tree.structure(base())
    np.testing.assert_allclose(logits(merged, BASE), logits(joined, MODEL), atol=1e-5)
    assert np.abs(logits(joined, MODEL) - logits(base(), BASE)).max() > 0.1


def test_a_projection_worked_by_hand():
    # W + (alpha / r) A B for one layer's gate, as matrices: alpha / r = 2.
    merged, leaf = merge(MODEL, join(trained(), base())), trained()["layers"]["mlp"]["gate"]
    want = np.float64(base()["layers"]["mlp"]["gate"]["kernel"][1])
    want = want + 2.0 * np.float64(leaf["lora_a"][1]) @ np.float64(leaf["lora_b"][1])
    np.testing.assert_allclose(merged["layers"]["mlp"]["gate"]["kernel"][1], want, atol=1e-6)


def test_join_and_split_undo_each_other():
    adapters, rest = split(join(trained(), base()))
    assert jax.tree.structure(rest) == jax.tree.structure(base())
    jax.tree.map(np.testing.assert_array_equal, adapters, trained())


def test_adapters_have_the_models_shapes_and_axes():
    shapes, axes = abstract_params(MODEL), logical_axes(MODEL)
    adapters, _ = split(shapes)
    assert jax.tree.map(lambda leaf: leaf.shape, adapters) == jax.tree.map(lambda leaf: leaf.shape, trained())
    assert axes["layers"]["attn"]["o"]["lora_a"] == ("layers", "heads", "head_dim", "lora_rank")
    assert axes["layers"]["attn"]["q"]["lora_b"] == ("layers", "lora_rank", "heads", "head_dim")


def test_the_start_is_uniform_and_zero():
    leaf = init_adapters(MODEL, jax.random.key(0))["layers"]["attn"]["o"]
    assert not leaf["lora_b"].any()
    assert 0.8 * 16**-0.5 < np.abs(leaf["lora_a"]).max() <= 16**-0.5  # 4 heads of 4 are the inputs of `o`


def test_some_targets_only():
    model = dataclasses.replace(BASE, lora=LoraConfig(rank=1, targets=("v", "down")))
    adapters = init_adapters(model, jax.random.key(0))
    assert jax.tree.structure(adapters) == jax.tree.structure(split(abstract_params(model))[0])
    assert set(adapters["layers"]["attn"]) == {"v"}
    np.testing.assert_array_equal(logits(join(adapters, base()), model), logits(base(), BASE))


def test_the_folder_is_pefts_and_comes_back(tmp_path):
    save_adapter(tmp_path, MODEL, trained(), base="some/base")
    loaded = load_adapter(tmp_path, MODEL)
    jax.tree.map(np.testing.assert_array_equal, loaded, trained())
    values = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (values["peft_type"], values["r"], values["lora_alpha"]) == ("LORA", 3, 6.0)
    assert values["base_model_name_or_path"] == "some/base"
    tensors = safetensors.numpy.load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * len(LORA_TARGETS)
    # What PEFT adds to the stored weight of a linear layer, [out, in], is what merging adds to the exported folder.
    hf.save(tmp_path / "base", BASE, base(), dtype="float32")
    hf.save(tmp_path / "merged", BASE, merge(MODEL, join(trained(), base())), dtype="float32")
    plain, merged = (safetensors.numpy.load_file(tmp_path / name / "model.safetensors") for name in ("base", "merged"))
    for name, tensor in plain.items():
        stem = "base_model.model." + name.removesuffix(".weight")
        change = 0.0
        if f"{stem}.lora_A.weight" in tensors:
            change = 2.0 * tensors[f"{stem}.lora_B.weight"] @ tensors[f"{stem}.lora_A.weight"]
            assert np.abs(change).max() > 0.01
        np.testing.assert_allclose(merged[name], tensor + change, atol=1e-6, err_msg=name)


def test_a_folder_of_other_adapters_is_refused(tmp_path):
    save_adapter(tmp_path, MODEL, trained())
    other = dataclasses.replace(BASE, lora=LoraConfig(rank=2, alpha=6.0))
    with pytest.raises(ConfigError, match=r'"r": 3.*"r": 2'):
        load_adapter(tmp_path, other)
    wide = dataclasses.replace(MODEL, intermediate_size=16)
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.lora_B\.weight is of shape \(12, 3\)"):
        load_adapter(tmp_path, wide)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_adapter(tmp_path, MODEL)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": 0}, "lora_rank=0"),
        ({"rank": 1, "alpha": 0.0}, "lora_alpha"),
        ({"rank": 1, "targets": ("q", "embed")}, r"lora_targets=\('q', 'embed'\)"),
    ],
)
def test_refusals(values, message):
    with pytest.raises(ConfigError, match=message):
        LoraConfig(**values)
    with pytest.raises(ConfigError, match="lora_rank=0: the model has no adapters"):
        merge(BASE, base())


def test_settings_offer_what_there_is():
    assert setting_groups.LORA_TARGETS == LORA_TARGETS
    assert ("auto", *IMPLEMENTATIONS) == setting_groups.ATTENTION
