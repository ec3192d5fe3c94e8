"""Schedules by hand, what decays, what Muon orthogonalises, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import ConfigError
from sage_jax.models import ModelConfig, init_params
from sage_jax.settings import RunSettings
from sage_jax.training.optimizer import (
    OptimizerOptions,
    decay_mask,
    make_optimizer,
    make_schedule,
    muon_dimensions,
    rl_options,
    sft_options,
)


def make_params():
    """The names and axes of a decoder with two stacked layers: width 4, 2 heads of 3, inner width 5."""
    rng = np.random.default_rng(0)
    shapes = {
        "embed": (7, 4),
        "layers": {
            "attn": {
                "q": {"kernel": (2, 4, 2, 3), "bias": (2, 2, 3)},
                "o": {"kernel": (2, 2, 3, 4)},
            },
            "attn_norm": {"scale": (2, 4)},
            "mlp": {"up": {"kernel": (2, 4, 5)}},
        },
    }
    return jax.tree.map(
        lambda s: jnp.array(rng.normal(size=s), jnp.float32), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )


def test_warm_up_then_constant():
    schedule = make_schedule(OptimizerOptions(learning_rate=4.0, warmup_steps=4))
    assert [float(schedule(step)) for step in range(6)] == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]


def test_warm_up_then_cosine():
    options = OptimizerOptions(learning_rate=2.0, schedule="cosine", warmup_steps=2, total_steps=6, final_fraction=0.5)
    # After the warm-up: 2 * (0.5 + 0.5 * (1 + cos(pi k / 4)) / 2) for k = 0 .. 4.
    cosine = [2 * (0.5 + 0.25 * (1 + np.cos(np.pi * k / 4))) for k in range(5)]
    schedule = make_schedule(options)
    np.testing.assert_allclose([float(schedule(step)) for step in range(7)], [1.0, 2.0, *cosine], rtol=1e-6)


def test_warm_up_then_linear():
    options = OptimizerOptions(learning_rate=2.0, schedule="linear", warmup_steps=2, total_steps=6, final_fraction=0.5)
    schedule = make_schedule(options)
    np.testing.assert_allclose(
        [float(schedule(step)) for step in range(8)], [1, 2, 2, 1.75, 1.5, 1.25, 1, 1], rtol=1e-6
    )


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_first_update_by_hand(name):
    params = {"kernel": jnp.array([2.0]), "scale": jnp.array([2.0])}
    optimizer = make_optimizer(OptimizerOptions(name=name, learning_rate=0.1, weight_decay=0.5, max_grad_norm=None))
    updates, _ = optimizer.update(
        {"kernel": jnp.array([3.0]), "scale": jnp.array([3.0])}, optimizer.init(params), params
    )
    # Both begin with the sign of the gradient; the kernel also decays, -0.1 * (1 + 0.5 * 2), and the scale does not.
    np.testing.assert_allclose([updates["kernel"][0], updates["scale"][0]], [-0.2, -0.1], rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm():
    # SGD-like view: Adam's first moment after one update is 0.1 times the clipped gradient (3, 4) / 5.
    params = {"kernel": jnp.zeros(2)}
    optimizer = make_optimizer(OptimizerOptions(max_grad_norm=1.0))
    _, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, optimizer.init(params), params)
    np.testing.assert_allclose(optax.tree_utils.tree_get(state, "mu")["kernel"], [0.06, 0.08], rtol=1e-5)


def test_adafactor_keeps_sums_of_rows_and_columns():
    params = {"kernel": jnp.ones((128, 256))}
    # For the gradient a_i b_j the product of row and column means over the whole mean is the square itself: a sign.
    gradient = {"kernel": jnp.outer(jnp.linspace(-2, 3, 128), jnp.linspace(1, 4, 256))}
    options = OptimizerOptions(name="adafactor", learning_rate=0.1, weight_decay=0.0, max_grad_norm=None)
    optimizer = make_optimizer(options)
    state = optimizer.init(params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 128 + 256 + 8
    updates, _ = optimizer.update(gradient, state, params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * np.sign(gradient["kernel"]), rtol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_first_moment_can_be_kept_in_bfloat16(name):
    params = make_params()
    optimizer = make_optimizer(OptimizerOptions(name=name, learning_rate=0.1, moment_dtype="bfloat16"))
    kinds = [str(leaf.dtype) for leaf in jax.tree.leaves(optimizer.init(params)) if leaf.ndim]
    assert kinds.count("bfloat16") == len(jax.tree.leaves(params))
    assert kinds.count("float32") == (len(kinds) - kinds.count("bfloat16"))
    updates, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(updates))


def test_rl_and_the_cold_start_share_one_group_of_settings():
    made = to_dataclass({"optimizer": "adafactor", "lr": 2.0, "sft_lr": 3.0, "max_grad_norm": 0.0}, RunSettings)
    rl, sft = rl_options(made), sft_options(made, 40)
    assert (rl.name, rl.learning_rate, rl.schedule, rl.max_grad_norm) == ("adafactor", 2.0, "constant", None)
    assert (sft.name, sft.learning_rate, sft.schedule, sft.warmup_steps) == ("adafactor", 3.0, "cosine", 4)


def test_norms_and_biases_do_not_decay():
    mask = decay_mask(make_params())
    assert mask["embed"]
    assert mask["layers"]["attn"]["q"] == {"kernel": True, "bias": False}
    assert not mask["layers"]["attn_norm"]["scale"]


def test_muon_orthogonalises_kernels_only():
    params = make_params()
    axes = muon_dimensions(params)
    assert axes["embed"] is None
    assert axes["layers"]["attn_norm"]["scale"] is None
    assert axes["layers"]["attn"]["q"]["bias"] is None
    optimizer = make_optimizer(OptimizerOptions(name="muon", learning_rate=1.0, weight_decay=0.0, max_grad_norm=None))
    updates, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
    matrices = {
        "q": updates["layers"]["attn"]["q"]["kernel"].reshape(2, 4, 6),
        "o": updates["layers"]["attn"]["o"]["kernel"].reshape(2, 6, 4),
        "up": updates["layers"]["mlp"]["up"]["kernel"],
    }
    for name, stacked in matrices.items():
        for matrix in np.asarray(stacked):
            values = np.linalg.svd(matrix, compute_uv=False)
            # Newton-Schulz with these coefficients brings every singular value near 1, times 0.2 sqrt(widest side).
            assert (values / (0.2 * np.sqrt(max(matrix.shape))) > 0.5).all(), name
            assert (values / (0.2 * np.sqrt(max(matrix.shape))) < 1.4).all(), name
    # All else gets Adam's first update, with Nesterov momentum: sign(g) * (0.9 * 0.1 / (1 - 0.9^2) + 1) = 1.473684.
    np.testing.assert_allclose(np.abs(updates["embed"]), 1.473684, rtol=1e-4)


def test_refusals():
    for key, value in {
        "name": "sgd",
        "schedule": "step",
        "moment_dtype": "int8",
        "learning_rate": 0,
        "warmup_steps": -1,
        "final_fraction": 2,
        "weight_decay": -0.1,
        "max_grad_norm": 0,
    }.items():
        with pytest.raises(ConfigError, match=rf"optimizer\.{key}={value!r} does not fit; use "):
            OptimizerOptions(**{key: value})
    for schedule in ("linear", "cosine"):
        with pytest.raises(ConfigError, match=f"total_steps=None.*warmup_steps=3 for a {schedule} schedule"):
            OptimizerOptions(schedule=schedule, warmup_steps=3)


def test_the_decoder_names_its_parameters_as_expected_here():
    config = ModelConfig(
        vocab_size=7,
        hidden_size=4,
        intermediate_size=5,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=2,
        qkv_bias=True,
    )
    params = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))

    def chosen(tree):
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path, simple=True, separator="/") for path, leaf in leaves if leaf}

    kernels = {
        f"layers/{name}/kernel" for name in ("attn/q", "attn/k", "attn/v", "attn/o", "mlp/gate", "mlp/up", "mlp/down")
    }
    names = jax.tree.map(
        lambda _, axes: axes is not None, params, muon_dimensions(params), is_leaf=lambda x: hasattr(x, "shape")
    )
    assert chosen(names) == kernels
    assert chosen(decay_mask(params)) == kernels | {"embed", "head"}
    assert muon_dimensions(params)["layers"]["attn"]["o"]["kernel"].reduction_axis == (1, 2)
