"""The decoder against transformers, and its forms (scan, loop, remat, cached, packed) against each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from sage_jax.errors import ConfigError
from sage_jax.models import hf, transformer
from sage_jax.models.attention import attention
from sage_jax.models.presets import preset
from sage_jax.models.transformer import (
    Transformer,
    abstract_params,
    forward,
    forward_cached,
    head_weights,
    init_params,
    logical_axes,
    unstack_layers,
)

BASE = preset("tiny")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "qwen2": BASE,
    "qwen2-untied-yarn": dataclasses.replace(BASE, tie_embeddings=False, rope_scaling=YARN),
    "qwen2-own-head-width": dataclasses.replace(BASE, head_dim=16),
    "qwen3": dataclasses.replace(BASE, qkv_bias=False, qk_norm=True, head_dim=16, rope_theta=1e6),
    "llama-llama3": dataclasses.replace(BASE, qkv_bias=False, tie_embeddings=False, rope_scaling=LLAMA3),
    "llama-biased": dataclasses.replace(BASE, o_bias=True),
    "llama-linear": dataclasses.replace(BASE, qkv_bias=False, rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "smollm2": dataclasses.replace(
        BASE, hidden_size=36, num_heads=9, num_kv_heads=3, head_dim=4, qkv_bias=False, rope_theta=1e5, rms_eps=1e-5
    ),
}
# Two rows of packed sequences with padding: lengths 7 + 9 of 20, and 4 + 5 + 11.
LENGTHS = ((7, 9), (4, 5, 11))
WIDTH = 20


@functools.cache
def _random_params(config):
    """Parameters with a spread that makes every part matter: scales and biases too, which start at 1 and 0."""
    leaves, structure = jax.tree.flatten(abstract_params(config))
    rng = np.random.default_rng(0)
    drawn = [jnp.asarray(rng.normal(size=leaf.shape) * 0.3, jnp.float32) for leaf in leaves]
    return jax.tree.map_with_path(
        lambda path, x: x + 1.0 if path[-1].key == "scale" else x, jax.tree.unflatten(structure, drawn)
    )


def _packed(vocab_size):
    """Packed ids, positions and segment ids [2, 20], and the sequences apart."""
    rng = np.random.default_rng(1)
    ids, positions, segments = (np.zeros((len(LENGTHS), WIDTH), np.int32) for _ in range(3))
    apart = []
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for segment, length in enumerate(lengths, 1):
            sequence = rng.integers(0, vocab_size, length)
            ids[row, start : start + length] = sequence
            positions[row, start : start + length] = np.arange(length)
            segments[row, start : start + length] = segment
            apart.append((row, start, sequence))
            start += length
    return ids, positions, segments, apart


@functools.partial(jax.jit, static_argnames=("config", "remat", "unroll", "attention_implementation"))
def _logits(config, params, ids, positions, segments, **options):
    return forward(config, params, ids, positions, segments, **options) @ head_weights(params).T


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers_on_packed_rows(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = FAMILIES[name]
    params = _random_params(config)
    hf.save(tmp_path, config, params, dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert model.config.model_type == name.split("-")[0].replace("smollm2", "llama")
    ids, positions, segments, apart = _packed(config.vocab_size)
    ours = np.asarray(_logits(config, params, ids, positions, segments))
    for row, start, sequence in apart:
        with torch.no_grad():
            theirs = model(torch.tensor(sequence[None])).logits[0].numpy()
        assert np.abs(theirs).max() > 1.0
        np.testing.assert_allclose(ours[row, start : start + len(sequence)], theirs, atol=1e-4)


def test_logits_equal_transformers_on_a_padded_batch(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    params = _random_params(BASE)
    hf.save(tmp_path, BASE, params, dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = np.random.default_rng(2).integers(0, BASE.vocab_size, (2, WIDTH))
    mask = np.ones_like(ids)
    mask[1, :6] = 0  # padding on the left
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    with torch.no_grad():
        theirs = model(
            torch.tensor(ids), attention_mask=torch.tensor(mask), position_ids=torch.tensor(positions)
        ).logits.numpy()
    ours = np.asarray(_logits(BASE, params, ids, positions, mask))
    np.testing.assert_allclose(ours[mask == 1], theirs[mask == 1], atol=1e-4)


def test_other_segments_padding_and_the_future_have_no_influence():
    params = _random_params(BASE)
    ids, positions, segments, _ = _packed(BASE.vocab_size)
    before = np.asarray(_logits(BASE, params, ids, positions, segments))
    changed = ids.copy()
    changed[0, 7:] = (changed[0, 7:] + 1) % BASE.vocab_size  # the second segment and the padding of row 0
    changed[1, 8:] = (changed[1, 8:] + 1) % BASE.vocab_size  # the end of segment 2 and all after it
    after = np.asarray(_logits(BASE, params, changed, positions, segments))
    np.testing.assert_array_equal(before[0, :7], after[0, :7])
    np.testing.assert_array_equal(before[1, :8], after[1, :8])
    assert np.abs(before[0, 7:16] - after[0, 7:16]).max() > 0.1
    assert np.isfinite(after).all()


@functools.cache
def _loss_and_gradient(**options):
    """Mean log-probability of the packed rows' own ids, and its gradient."""
    ids, positions, segments, _ = _packed(BASE.vocab_size)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        logits = forward(BASE, params, ids, positions, segments, **options) @ head_weights(params).T
        taken = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)[..., 0]
        return -jnp.mean(taken * (segments > 0))

    return loss(_random_params(BASE))


@pytest.mark.parametrize(
    ("remat", "unroll", "implementation"),
    [("none", True, "xla"), ("dots", False, "xla"), ("full", False, "recompute"), ("full", True, "xla")],
)
def test_scan_loop_remat_and_blocks_give_the_same_logits_and_gradients(remat, unroll, implementation, monkeypatch):
    value, gradient = _loss_and_gradient()  # attention in tiles
    monkeypatch.setattr("sage_jax.models.attention._MIN_BLOCK", 8)  # three blocks, the last one short
    other, other_gradient = _loss_and_gradient(remat=remat, unroll=unroll, attention_implementation=implementation)
    np.testing.assert_allclose(other, value, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient, other_gradient)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient) if leaf.ndim > 1)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_cached_forward_in_pieces_equals_the_full_one(name):
    config = FAMILIES[name]
    params = _random_params(config)
    ids = np.random.default_rng(3).integers(0, config.vocab_size, (2, WIDTH))
    positions = np.broadcast_to(np.arange(WIDTH), ids.shape)
    full = np.asarray(_logits(config, params, ids, positions, np.ones_like(ids)))

    @functools.partial(jax.jit, static_argnames="unstacked")
    def step(params, ids, positions, cache, unstacked):
        def attend(layer, q, k, v, cache):
            keys, values = cache
            keys = keys.at[layer, :, positions[0]].set(k.swapaxes(0, 1))
            values = values.at[layer, :, positions[0]].set(v.swapaxes(0, 1))
            mask = jnp.arange(WIDTH) <= positions[..., None]
            return attention(q, keys[layer], values[layer], mask), (keys, values)

        params = unstack_layers(params) if unstacked else params
        hidden, cache = forward_cached(config, params, ids, positions, cache, attend)
        return hidden @ head_weights(params).T, cache

    shape = (config.num_layers, 2, WIDTH, config.num_kv_heads, config.head_dim)
    cache = (jnp.zeros(shape), jnp.zeros(shape))
    pieces = []
    for start, end, unstacked in ((0, 8, True), (8, 16, True), (16, 17, False), (17, 18, False), (18, 19, False)):
        logits, cache = step(params, ids[:, start:end], positions[:, start:end], cache, unstacked)
        pieces.append(logits)
    np.testing.assert_allclose(np.concatenate(pieces, 1), full[:, :19], atol=1e-5)


def test_module_call_gives_the_logits_of_the_pure_functions():
    config = FAMILIES["llama-llama3"]
    params = _random_params(config)
    structure = nnx.graphdef(nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0))))
    model = nnx.merge(structure, params)
    ids, positions, segments, _ = _packed(config.vocab_size)
    np.testing.assert_allclose(
        model(ids, positions, segments), _logits(config, params, ids, positions, segments), atol=1e-5
    )


@pytest.mark.parametrize(
    ("x", "kernel", "contract"), [((2, 3, 4), (4, 5), 1), ((2, 3, 4), (4, 2, 5), 1), ((3, 2, 5), (2, 5, 4), 2)]
)
def test_gradients_of_a_projection_are_those_of_the_plain_product(x, kernel, contract):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=x), rng.normal(size=kernel)
    with jax.enable_x64(True):
        plain, back = jax.vjp(lambda x, kernel: jnp.tensordot(x, kernel, axes=contract), x, kernel)
        own, own_back = jax.vjp(lambda x, kernel: transformer._product(x, kernel, contract), x, kernel)
        slope = rng.normal(size=plain.shape)
        np.testing.assert_array_equal(own, plain)
        for got, wanted in zip(own_back(slope), back(slope), strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-13)


def test_initial_parameters_are_stacked_float32_and_layers_differ():
    params = init_params(BASE, jax.random.key(0))
    kernel = params["layers"]["mlp"]["up"]["kernel"]
    assert kernel.shape == (BASE.num_layers, BASE.hidden_size, BASE.intermediate_size)
    assert not np.array_equal(kernel[0], kernel[1])
    assert np.std(kernel) == pytest.approx(0.02, rel=0.1)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    again = init_params(BASE, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract_params(BASE))


@pytest.mark.parametrize("name", ["qwen3", "llama-llama3"])
def test_every_parameter_axis_has_a_logical_name(name):
    config = FAMILIES[name]
    ranks = jax.tree.map(lambda leaf: len(leaf.shape), abstract_params(config))
    names = jax.tree.map(len, logical_axes(config), is_leaf=lambda node: isinstance(node, tuple))
    assert names == ranks
    assert logical_axes(config)["layers"]["attn"]["o"]["kernel"] == ("layers", "heads", "head_dim", "embed")


def test_bfloat16_computes_in_bfloat16_and_stays_near_float32():
    params = _random_params(BASE)
    ids, positions, segments, _ = _packed(BASE.vocab_size)
    hidden = forward(BASE, params, ids, positions, segments, compute_dtype="bfloat16")
    exact = forward(BASE, params, ids, positions, segments)
    assert hidden.dtype == jnp.bfloat16
    assert exact.dtype == jnp.float32
    error = np.abs(np.asarray(hidden, np.float32) - exact)[segments > 0]
    assert 1e-4 < np.mean(error) < 0.1


def test_unknown_options_are_refused_by_name():
    ids = np.zeros((1, 4), np.int32)
    with pytest.raises(ConfigError, match="remat='some'"):
        forward(BASE, _random_params(BASE), ids, ids, ids, remat="some")
    with pytest.raises(ConfigError, match="attention='flash'"):
        forward(BASE, _random_params(BASE), ids, ids, ids, attention_implementation="flash")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_kv_heads", 3),
        ("head_dim", 7),
        ("num_layers", 0),
        ("vocab_size", 1.5),
        ("dtype", "float16"),
        ("rope_theta", 0.0),
        ("rms_eps", 0.0),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"model.{field}"):
        dataclasses.replace(BASE, **{field: value})


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "original_max"),
        ({"rope_type": "yarn", "factor": 8.0, "beta": 1}, "beta"),
    ],
)
def test_rope_scalings_that_do_not_fit_are_refused_by_name(scaling, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(BASE, rope_scaling=scaling)
