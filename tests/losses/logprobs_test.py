"""Log-probabilities by blocks of the vocabulary: the reference, gradients, and that no [tokens, V] array exists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from sage_jax.losses import logprobs, token_logprobs
from sage_jax.testing import references


def draw(count=7, width=5, vocab=11, seed=0):
    rng = np.random.default_rng(seed)
    hidden, head = rng.normal(size=(count, width)), rng.normal(size=(vocab, width))
    return jnp.array(hidden, jnp.float32), jnp.array(head, jnp.float32), rng.integers(0, vocab, count)


@pytest.fixture(params=[1, 4, 5, 12])
def block(request, monkeypatch):
    """Entries of a block: 12 fit evenly into the vocabulary of 24, 5 leave a rest of 4."""
    monkeypatch.setattr(logprobs, "_MIN_BLOCK", request.param)
    return {"max_logits": 1}


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("parts", [1, 2])
def test_equals_the_reference(block, parts, temperature):
    hidden, head, targets = draw(vocab=24)
    got = token_logprobs(hidden, head, targets, temperature=temperature, parts=parts, **block)
    logprobs, entropy = references.token_scores(hidden, head, targets, temperature=temperature)
    np.testing.assert_allclose(got.logprobs, logprobs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.entropy, entropy, rtol=1e-5, atol=1e-5)


def test_hand_worked():
    # Head = identity and hidden (ln 3, 0): p = (3/4, 1/4); entropy = 3/4 ln 4/3 + 1/4 ln 4 = 0.562335.
    hidden = jnp.array([[np.log(3.0), 0.0]] * 2)
    got = token_logprobs(hidden, jnp.eye(2), jnp.array([0, 1]))
    np.testing.assert_allclose(got.logprobs, np.log([0.75, 0.25]), rtol=1e-6)
    np.testing.assert_allclose(got.entropy, [0.562335, 0.562335], rtol=1e-6)
    assert got.is_top.tolist() == [True, False]


def test_leading_axes_are_kept():
    hidden, head, targets = draw(count=6)
    flat = token_logprobs(hidden, head, targets)
    folded = token_logprobs(hidden.reshape(2, 3, 5), head, targets.reshape(2, 3))
    np.testing.assert_allclose(folded.logprobs.reshape(-1), flat.logprobs, rtol=1e-6)


def test_gradients(block):
    hidden, head, targets = draw(count=5, vocab=24)

    def total(hidden, head):
        scores = token_logprobs(hidden, head, targets, temperature=0.7, entropy_gradient=True, **block)
        return jnp.sum(scores.logprobs * jnp.arange(1.0, 6.0)) + jnp.sum(jnp.square(scores.entropy))

    check_grads(jax.jit(total), (hidden, head), order=1, modes=["rev"], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_those_of_the_whole_softmax(block, parts):
    hidden, head, targets = draw(vocab=24)

    def plain(hidden, head):
        logits = jax.nn.log_softmax(hidden @ head.T / 0.7)
        return jnp.sum(jnp.square(jnp.take_along_axis(logits, targets[:, None], axis=1)))

    def blocked(hidden, head):
        return jnp.sum(
            jnp.square(token_logprobs(hidden, head, targets, temperature=0.7, parts=parts, **block).logprobs)
        )

    want = jax.jit(jax.grad(plain, argnums=(0, 1)))(hidden, head)
    for one, other in zip(jax.jit(jax.grad(blocked, argnums=(0, 1)))(hidden, head), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_entropy_has_no_gradient_unless_asked_for():
    hidden, head, targets = draw()

    def gradient(asked):
        return jax.jit(jax.grad(lambda x: token_logprobs(x, head, targets, entropy_gradient=asked).entropy.sum()))(
            hidden
        )

    assert not jnp.any(gradient(False))
    assert jnp.any(gradient(True))


def test_huge_logits_stay_finite_and_at_most_certain():
    hidden, head, targets = draw()
    got = token_logprobs(hidden * 1e4, head, targets)
    assert np.isfinite(got.logprobs).all()
    assert got.logprobs.max() <= 0
    assert np.isfinite(got.entropy).all()


def test_what_all_entries_have_in_common_takes_no_digits():
    # As in a trained model: logits of 160 +- 6, most of which a few wide features give to every entry alike. Rows as
    # they are would be off by 1.2e-4.
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(16, 576)), rng.normal(size=(4096, 576)) / 4
    hidden[:, ::72] += 40.0
    head[:, ::72] = 0.5 + head[:, ::72] / 100
    hidden, head = hidden.astype(np.float32), head.astype(np.float32)
    targets = rng.integers(0, 4096, 16)
    got = token_logprobs(hidden, head, targets)
    want, entropy = references.token_scores(hidden, head, targets)
    np.testing.assert_allclose(got.logprobs, want, rtol=0, atol=3e-5)
    np.testing.assert_allclose(got.entropy, entropy, rtol=0, atol=3e-5)


def test_bfloat16_hidden_states_give_float32_scores():
    hidden, head, targets = draw()
    low = hidden.astype(jnp.bfloat16), head.astype(jnp.bfloat16)
    got = token_logprobs(*low, targets)
    assert got.logprobs.dtype == jnp.float32
    # Against the same rounded inputs in float64: the accumulation adds nothing of bfloat16's size (4e-3).
    want, _ = references.token_scores(*(np.asarray(array, np.float64) for array in low), targets)
    np.testing.assert_allclose(got.logprobs, want, rtol=1e-5, atol=1e-5)


def largest_array(jaxpr):
    """Returns the most elements of any array in a jaxpr, inner ones included."""
    sizes = [variable.aval.size for equation in jaxpr.eqns for variable in equation.outvars]
    inner = []
    for equation in jaxpr.eqns:
        for child in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            child = getattr(child, "jaxpr", child)
            if hasattr(child, "eqns"):
                inner.append(largest_array(child))
    return max([0, *sizes, *inner])


@pytest.mark.parametrize(("max_logits", "fits"), [(1, True), (2**22, False)])
def test_no_array_of_tokens_by_vocabulary(max_logits, fits):
    count, width, vocab = 64, 8, 2000
    hidden, head, targets = draw(count, width, vocab)

    def loss(hidden, head):
        return token_logprobs(hidden, head, targets, max_logits=max_logits).logprobs.sum()

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1)))(hidden, head)
    assert (largest_array(jaxpr.jaxpr) < count * vocab) == fits
