"""The memory estimate against hand arithmetic and against the compiler's own count."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from sage_jax.errors import ConfigError
from sage_jax.models.memory import count_parameters, estimate
from sage_jax.models.presets import preset
from sage_jax.models.transformer import abstract_params, forward

SMALL = preset("tiny", hidden_size=64, intermediate_size=256, num_layers=6, head_dim=16)


def test_fixed_parts_worked_by_hand():
    count = count_parameters(SMALL)
    made = estimate(SMALL, rows=4, length=64, param_dtype="float32", reference=True, max_logits=4096)
    assert made.parameters == count
    assert (made.weights, made.gradients, made.optimizer, made.reference) == (
        4 * count,
        4 * count,
        8 * count,
        4 * count,
    )
    assert made.head == 2 * 4 * 4096  # less than 4 x 64 tokens by the vocabulary of 128
    assert made.total == 20 * count + made.head + made.activations
    half = estimate(
        dataclasses.replace(SMALL, dtype="bfloat16"), rows=4, length=64, param_dtype="bfloat16", moment_dtype="bfloat16"
    )
    assert (half.weights, half.optimizer, half.reference) == (2 * count, 4 * count, 0)


def test_mesh_cuts_parameters_and_rows():
    config = preset("qwen2.5-7b-instruct")
    whole = estimate(config, rows=8, length=1024)
    cut = estimate(config, rows=8, length=1024, mesh={"fsdp": 4, "tensor": 2})
    # Norms and biases are not cut by fsdp; they are under a thousandth.
    assert cut.weights == pytest.approx(whole.weights / 8, rel=1e-3)
    assert cut.parameters == whole.parameters
    copied = estimate(config, rows=8, length=1024, mesh={"data": 8})
    assert copied.weights == whole.weights
    assert copied.activations == whole.activations // 8


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_activations_are_within_two_fifths_of_the_compilers_count(remat):
    tokens = jax.ShapeDtypeStruct((4, 256), jnp.int32)
    run = functools.partial(forward, SMALL, remat=remat, attention_implementation="xla")
    step = jax.jit(jax.grad(lambda params, *batch: (run(params, *batch) ** 2).sum()))
    compiled = step.lower(abstract_params(SMALL), tokens, tokens, tokens).compile()
    measured = compiled.memory_analysis().temp_size_in_bytes
    made = estimate(SMALL, rows=4, length=256, remat=remat).activations
    assert made == pytest.approx(measured, rel=0.4)


def test_more_recomputing_needs_less():
    sizes = [estimate(SMALL, rows=4, length=256, remat=remat).total for remat in ("none", "dots", "full")]
    assert sizes[0] > sizes[1] > sizes[2]
    kinds = [
        estimate(SMALL, rows=4, length=256, remat="none", attention=a).total for a in ("xla", "recompute", "cudnn")
    ]
    assert kinds[0] > kinds[1] > kinds[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"remat": "some"}, "remat"), ({"param_dtype": "int8"}, "param_dtype"), ({"attention": "flash"}, "attention")],
)
def test_unknown_options_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        estimate(SMALL, rows=1, length=8, **options)
