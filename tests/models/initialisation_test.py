"""Heads that look a fixed number of tokens back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.errors import ConfigError
from sage_jax.models.config import ModelConfig
from sage_jax.models.initialisation import add_previous_token_heads
from sage_jax.models.transformer import abstract_params, forward_cached

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=64,
    intermediate_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    qkv_bias=True,
)


def _params(config):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 0.02, jnp.float32), abstract_params(config)
    )


def _attention_weights(params, config, length, queries):
    """Softmax weights [L, H, len(queries), length] that a causal model on random ids would give."""
    ids = jax.random.randint(jax.random.key(3), (1, length), 0, config.vocab_size)

    def attend(index, q, k, v, cache):
        k = jnp.repeat(k[0], config.num_heads // config.num_kv_heads, axis=1)
        scores = jnp.einsum("thk,shk->hts", q[0, queries], k) / config.head_dim**0.5
        visible = jnp.arange(length)[None, :] <= queries[:, None]
        cache = [*cache, jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)]
        return jnp.zeros_like(q), cache

    @jax.jit
    def run(params):
        return jnp.stack(forward_cached(config, params, ids, jnp.arange(length)[None], [], attend)[1])

    return np.asarray(run(params))


@pytest.mark.parametrize(("head_dim", "theta"), [(32, 10_000.0), (64, 1_000_000.0)])
def test_wanted_token_gets_nine_tenths_of_the_weight_at_length_2048(head_dim, theta):
    config = dataclasses.replace(CONFIG, head_dim=head_dim, rope_theta=theta)
    params = _params(config)
    changed = add_previous_token_heads(params, config, layers=[1], kv_head=1, offsets=(1, 2))
    queries = np.array([5, 100, 1023, 2047])
    weights = _attention_weights(changed, config, 2048, queries)
    rows = np.arange(len(queries))
    assert (weights[1, 2][rows, queries - 1] >= 0.9).all()
    assert (weights[1, 3][rows, queries - 2] >= 0.9).all()
    untouched = _attention_weights(params, config, 2048, queries)
    np.testing.assert_array_equal(weights[0], untouched[0])
    np.testing.assert_array_equal(weights[1, :2], untouched[1, :2])


def test_several_layers_at_once_and_offsets_repeat_over_the_group():
    config = dataclasses.replace(CONFIG, num_kv_heads=1)
    changed = add_previous_token_heads(_params(config), config, layers=(0, 1), offsets=(1, 3), length=256)
    weights = _attention_weights(changed, config, 256, np.array([200]))
    for layer in range(2):
        for head, offset in enumerate((1, 3, 1, 3)):
            assert weights[layer, head, 0, 200 - offset] >= 0.9


def test_input_parameters_and_values_are_left_alone():
    params = _params(CONFIG)
    before = jax.tree.map(np.array, params)
    changed = add_previous_token_heads(params, CONFIG, length=128)
    jax.tree.map(np.testing.assert_array_equal, params, before)
    for part in ("v", "o"):
        jax.tree.map(np.testing.assert_array_equal, changed["layers"]["attn"][part], before["layers"]["attn"][part])
    assert not np.array_equal(changed["layers"]["attn"]["q"]["bias"], before["layers"]["attn"]["q"]["bias"])


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"qkv_bias": False}, {}, "qkv_bias"),
        ({"qk_norm": True}, {}, "qk_norm"),
        ({}, {"layers": [2]}, "layers"),
        ({}, {"kv_head": 2}, "kv_head"),
        ({}, {"offsets": [-1]}, "offsets"),
        ({}, {"weight": 1.0}, "weight"),
        ({"head_dim": 2, "rope_theta": 10_000.0}, {}, "wider head"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, arguments, message):
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ConfigError, match=message):
        add_previous_token_heads({}, config, **arguments)
