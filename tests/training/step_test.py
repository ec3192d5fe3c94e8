"""The update step on a toy attention model: equal however packed or split, equal to float64, and safe against NaN."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sage_jax.checkpoints import Checkpointer
from sage_jax.data.packing import PackedBatch, Sequence, micro_batches, pack
from sage_jax.errors import ConfigError, NumericsError
from sage_jax.models import ModelConfig, head_weights, init_params
from sage_jax.models import forward as models_forward
from sage_jax.models.config import LoraConfig
from sage_jax.models.lora import init_adapters
from sage_jax.testing import references
from sage_jax.training.optimizer import OptimizerOptions, decay_mask, make_optimizer
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, combine_updates, make_logprob_fn, make_update_step, read_metrics

VOCAB, WIDTH, ROW = 11, 6, 16
DESCENT = optax.sgd(1.0)  # One update subtracts the gradient, so that tests can read it off.


def forward(params, ids, positions, segment_ids):
    """One attention layer that sees earlier tokens of its own segment only."""
    x = params["embed"][ids] + params["position"][positions]
    scores = jnp.einsum("ntd,nsd->nts", x @ params["query"], x)
    place = jnp.arange(ids.shape[1])
    seen = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (place[:, None] >= place[None, :])
    return x + jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1) @ x


def head(params):
    return params["embed"]


def make_params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"embed": (VOCAB, WIDTH), "position": (ROW, WIDTH), "query": (WIDTH, WIDTH)}
    return {name: jnp.array(0.5 * rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def make_sequences(seed=1, lengths=(5, 9, 12, 3, 7, 2)):
    rng = np.random.default_rng(seed)
    sequences = []
    for number, length in enumerate(lengths):
        mask = (rng.random(length) < 0.6).astype(np.float32)
        mask[0], mask[-1] = 0, 1
        engine = -rng.uniform(1, 3, length)
        sequences.append(Sequence(rng.integers(0, VOCAB, length), mask, rng.normal(size=length), engine, number))
    return sequences


def one_per_row(sequences):
    batches = [pack([sequence], row_length=ROW) for sequence in sequences]
    assert all(batch.ends is None for batch in batches)  # sequences of their own share no prefixes
    fields = [field.name for field in dataclasses.fields(PackedBatch) if field.name != "ends"]
    return PackedBatch(**{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in fields})


def split(sequences):
    """Returns two micro-batches of two rows: the shape that most tests share, since each shape is compiled anew."""
    return micro_batches(pack(sequences, row_length=ROW), 2, capacity_multiple=16, min_micro=2)


@functools.lru_cache
def make_update(options):
    return make_update_step(forward, head, DESCENT, options)


def run(micro, options, *, params=None, ref_params=None):
    """Returns metrics and gradients of one update."""
    params = make_params() if params is None else params
    state, metrics = make_update(options)(TrainState.create(params, DESCENT), micro, ref_params)
    grads = jax.tree.map(lambda before, after: np.asarray(before - after), params, state.params)
    return read_metrics(metrics, params, step=0), grads


FULL = LossOptions(
    aggregation="sequence_mean", dual_clip=3.0, kl_coef=0.1, entropy_coef=0.02, importance_cap=1.5, temperature=0.7
)


def assert_same(first, second):
    for name, value in first[0].items():
        np.testing.assert_allclose(second[0][name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), first[1], second[1])


def test_packed_equals_unpacked():
    sequences, ref = make_sequences(), make_params(5)
    packed, unpacked = pack(sequences, row_length=ROW), one_per_row(sequences)
    assert len(packed.ids) < len(unpacked.ids)
    results = [run(micro_batches(batch, 6, capacity_multiple=64), FULL, ref_params=ref) for batch in (packed, unpacked)]
    assert_same(*results)
    assert any(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(results[0][1]))


# 5 rows a part: the second part holds 1 row and 4 empty ones. 3 rows in at least 4 parts: two parts are empty.
@pytest.mark.parametrize(("rows", "least"), [(5, 1), (3, 4)])
def test_micro_batches_equal_the_whole_batch(rows, least):
    batch, ref = one_per_row(make_sequences()), make_params(5)
    whole = run(micro_batches(batch, 6, capacity_multiple=64), FULL, ref_params=ref)
    assert_same(whole, run(micro_batches(batch, rows, capacity_multiple=4, min_micro=least), FULL, ref_params=ref))


def test_ratios_of_whole_sequences_do_not_depend_on_splitting():
    options = LossOptions(aggregation="sequence_mean", ratio_level="sequence")
    sequences = make_sequences()
    batch = one_per_row(sequences)
    whole, parts = (micro_batches(batch, rows, capacity_multiple=64) for rows in (6, 2))
    # Each token 0.1 likelier than under the old policy: the longest sequence has the largest ratio.
    logprobs = make_logprob_fn(forward, head, options)
    whole, parts = (m._replace(old_logprobs=np.asarray(logprobs(make_params(), m)) - 0.1) for m in (whole, parts))
    results = [run(micro, options) for micro in (whole, parts)]
    assert_same(*results)
    longest = max(item.mask.sum() for item in sequences)
    np.testing.assert_allclose(results[0][0]["loss/ratio_max"], np.exp(0.1 * longest), rtol=1e-4)


def test_equals_the_float64_reference():
    params, ref, sequences = make_params(), make_params(5), make_sequences()
    rng = np.random.default_rng(9)
    batch = one_per_row(sequences)
    old = batch.engine_logprobs + rng.uniform(-0.3, 0.3, batch.ids.shape)
    got, _ = run(micro_batches(batch, 6, capacity_multiple=64, old_logprobs=old), FULL, params=params, ref_params=ref)

    flat = {
        name: [] for name in ("logprobs", "entropy", "ref_logprobs", "advantages", "engine_logprobs", "old_logprobs")
    }
    for row, item in enumerate(sequences):
        trained = np.flatnonzero(item.mask)
        for tree, name in ((params, "logprobs"), (ref, "ref_logprobs")):
            hidden = forward(tree, *(getattr(batch, key)[row : row + 1] for key in ("ids", "positions", "segment_ids")))
            scores, entropy = references.token_scores(
                np.asarray(hidden)[0, trained - 1], tree["embed"], item.ids[trained], temperature=0.7
            )
            flat[name] += scores.tolist()
            flat["entropy"] += entropy.tolist() if name == "logprobs" else []
        flat["advantages"] += item.advantages[trained].tolist()
        flat["engine_logprobs"] += item.engine_logprobs[trained].tolist()
        flat["old_logprobs"] += old[row, trained].tolist()
    owners = np.repeat(range(len(sequences)), [int(item.mask.sum()) for item in sequences])
    weights = references.token_weights(np.ones(len(owners)), owners, aggregation="sequence_mean")
    names = ("clip_low", "clip_high", "dual_clip", "kl_coef", "kl_kind", "entropy_coef", "importance_cap")
    want = references.policy_loss(weights=weights, **flat, **{name: getattr(FULL, name) for name in names})
    np.testing.assert_allclose(got["loss/total"], want, rtol=1e-5)
    np.testing.assert_allclose(got["loss/entropy"], np.mean(flat["entropy"]), rtol=1e-5)
    assert got["tokens/trained"] == len(owners)


def test_gradient_norm_and_step_norm_are_those_of_the_gradients():
    got, grads = run(split(make_sequences()), LossOptions())
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(grads)))
    np.testing.assert_allclose([got["update/grad_norm"], got["update/step_norm"]], [norm, norm], rtol=1e-4)


def test_zero_advantage_changes_nothing():
    sequences = [dataclasses.replace(item, advantages=0 * item.advantages) for item in make_sequences()]
    got, grads = run(split(sequences), LossOptions())
    assert got["update/grad_norm"] == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads))


def test_untrained_tokens_matter_as_context_only():
    sequences = make_sequences()
    poisoned = [
        dataclasses.replace(
            item,
            advantages=np.where(item.mask > 0, item.advantages, np.nan),
            engine_logprobs=np.where(item.mask > 0, item.engine_logprobs, np.inf),
        )
        for item in sequences
    ]
    clean, dirty = (run(split(s), LossOptions()) for s in (sequences, poisoned))
    assert clean[0] == dirty[0]
    jax.tree.map(np.testing.assert_array_equal, clean[1], dirty[1])


def test_an_update_moves_probabilities_towards_the_advantage():
    # Two rollouts of one prompt [1, 2]: token 3 was good, token 4 was bad.
    def rollout(token, advantage):
        return Sequence(np.array([1, 2, token]), np.array([0, 0, 1.0]), np.full(3, advantage), np.zeros(3), token)

    micro = split([rollout(3, 1.0), rollout(4, -1.0)])
    logprobs = make_logprob_fn(forward, head, LossOptions())
    state = TrainState.create(make_params(), DESCENT)
    before = np.asarray(logprobs(state.params, micro))[0]
    state, _ = make_update(LossOptions())(state, micro)
    after = np.asarray(logprobs(state.params, micro))[0]
    assert after[0] > before[0] + 0.05
    assert after[1] < before[1] - 0.05


def test_old_logprobs_of_the_same_weights_are_the_on_policy_case():
    micro, params = split(make_sequences()), make_params()
    old = make_logprob_fn(forward, head, LossOptions())(params, micro)
    assert_same(
        run(micro, LossOptions(), params=params), run(micro._replace(old_logprobs=old), LossOptions(), params=params)
    )


def test_several_epochs_report_a_ratio_that_leaves_one():
    micro, update = split(make_sequences()), make_update(LossOptions())
    state = TrainState.create(make_params(), DESCENT)
    micro = micro._replace(old_logprobs=make_logprob_fn(forward, head, LossOptions())(state.params, micro))
    state, first = update(state, micro)
    compiled = update.jitted._cache_size()
    state, second = update(state, micro)
    assert float(first["loss/ratio_max"]) == pytest.approx(1, abs=1e-5)
    assert float(second["loss/ratio_max"]) > 1.01
    assert update.jitted._cache_size() == compiled
    assert int(state.step) == 2


def test_metrics_of_several_updates_by_hand():
    # 30 and 10 trained tokens, twice: means (0.1 * 30 + 0.5 * 10) / 40 = 0.2 in the first pass and 0.4 in the second.
    def one(tokens, gap, largest, norm):
        return {"tokens/trained": tokens, "loss/x": gap, "loss/x_max": largest, "update/grad_norm": norm}

    first = [one(30.0, 0.1, 3.0, 7.0), one(10.0, 0.5, 1.0, 8.0)]
    second = [one(30.0, 0.3, 2.0, 9.0), one(10.0, 0.7, 1.0, 6.0)]
    assert combine_updates(first) == pytest.approx(one(40.0, 0.2, 3.0, 8.0))
    assert combine_updates(first + second, epochs=2) == pytest.approx(one(40.0, 0.3, 3.0, 6.0))
    assert combine_updates(first + first, epochs=2) == pytest.approx(one(40.0, 0.2, 3.0, 8.0))
    assert combine_updates(first[:1]) == first[0]  # one update, bit for bit


def test_sft_learns_its_sequences():
    sequences = [
        Sequence(np.arange(6) + i, np.array([0, 1, 1, 1, 1, 1.0]), np.zeros(6), np.zeros(6), i) for i in range(3)
    ]
    micro = micro_batches(pack(sequences, row_length=ROW), 1, capacity_multiple=8)
    optimizer = optax.adam(0.05)
    update = make_update_step(forward, head, optimizer, LossOptions(kind="sft", temperature=0.5))
    state, metrics = update(TrainState.create(make_params(), optimizer), micro)
    first = read_metrics(metrics, state.params, step=0)
    for _ in range(40):
        state, metrics = update(state, micro)
    last = read_metrics(metrics, state.params, step=40)
    assert first["sft/loss"] == pytest.approx(first["loss/total"], rel=1e-6)
    assert last["sft/loss"] < 0.2 * first["sft/loss"]
    assert last["sft/accuracy"] == 1.0
    assert not [name for name in last if "policy" in name or "engine" in name]


def broken_forward(params, ids, positions, segment_ids):
    """A forward pass whose value is fine and whose gradient is not: d sqrt(x) at 0 is infinite."""
    return forward(params, ids, positions, segment_ids) + jnp.sqrt(params["poison"])


def test_a_non_finite_gradient_is_not_applied_and_named():
    params = make_params() | {"poison": jnp.zeros(WIDTH)}
    optimizer = optax.adam(0.1)
    update = make_update_step(broken_forward, head, optimizer, LossOptions())
    state, metrics = update(
        TrainState.create(params, optimizer), micro_batches(pack(make_sequences(), row_length=ROW), 2)
    )
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, optimizer.init(params))
    assert int(state.step) == 0
    with pytest.raises(NumericsError, match=r"step 7: the gradient of \['poison'\].*1 of 4 leaves.*not applied$"):
        read_metrics(metrics, params, step=7)


def test_a_broken_parameter_is_named_as_the_cause():
    params = make_params()
    params["query"] = params["query"].at[0, 0].set(jnp.nan)
    _, metrics = make_update(LossOptions())(TrainState.create(params, DESCENT), split(make_sequences()))
    with pytest.raises(NumericsError, match=r"loss nan.*parameters already not finite: \['query'\]"):
        read_metrics(metrics, params, step=1)


def test_the_reference_runs_only_when_it_counts():
    calls = []

    def counting(params, *rows):
        calls.append(params)
        return forward(params, *rows)

    micro, state = split(make_sequences()), TrainState.create(make_params(), DESCENT)
    counts = {}
    for kl_coef in (0.0, 0.1):
        calls.clear()
        update = make_update_step(counting, head, DESCENT, LossOptions(kl_coef=kl_coef))
        _, metrics = jax.eval_shape(update, state, micro, make_params(5))
        counts[kl_coef] = len(calls)
        assert ("loss/kl" in metrics) == (kl_coef > 0)
    assert counts[0.1] == 2 * counts[0.0]
    with pytest.raises(ConfigError, match=r"kl_coef=0.1 needs ref_params"):
        update(state, micro)


def test_the_state_is_donated_and_the_given_parameters_are_not():
    params, update = make_params(), make_update(FULL)
    state = TrainState.create(params, DESCENT)
    micro = micro_batches(pack(make_sequences(), row_length=ROW), 6, capacity_multiple=64)
    following, _ = update(state, micro, params)
    assert state.params["query"].is_deleted()
    assert not params["query"].is_deleted()
    _, metrics = update(following, micro, params)
    assert float(metrics["loss/kl"]) > 0


def test_an_update_copies_neither_parameters_nor_moments():
    params = make_params() | {"embed": jnp.zeros((50_000, WIDTH))}
    optimizer = make_optimizer(OptimizerOptions())
    update = make_update_step(forward, head, optimizer, LossOptions(max_logits=1))
    state = TrainState.create(params, optimizer)
    compiled = update.jitted.lower(state, split(make_sequences()), None, None).compile()
    # The sum over micro-batches and one micro-batch's gradient, or the step; copies of the state would be three more.
    assert compiled.memory_analysis().temp_size_in_bytes < 3 * params["embed"].nbytes


def test_only_trained_tokens_reach_the_head():
    def wide_head(params):
        return jnp.zeros((1000, WIDTH)) + params["embed"].sum()

    item = Sequence(np.arange(ROW) % VOCAB, np.eye(1, ROW, ROW - 1)[0], np.ones(ROW), np.zeros(ROW))
    micro = micro_batches(pack([item] * 4, row_length=ROW), 4, capacity_multiple=8)
    update = make_update_step(forward, wide_head, DESCENT, LossOptions())
    program = update.jitted.lower(TrainState.create(make_params(), DESCENT), micro, None).as_text()
    # 4 trained tokens in 8 places, of 64 tokens: logits are [8, V], in the forward and in the backward pass.
    assert "tensor<8x1000xf32>" in program
    assert f"tensor<{4 * ROW}x1000xf32>" not in program
    assert f"tensor<4x{ROW}x1000xf32>" not in program


def test_refusals():
    for key, value in {
        "kind": "dpo",
        "aggregation": "mean",
        "clip_low": 0,
        "clip_high": -1,
        "dual_clip": 1.0,
        "kl_coef": -0.1,
        "kl_kind": "k4",
        "entropy_coef": -1,
        "importance_cap": 0,
        "importance_level": "ratio",
        "temperature": 0,
        "max_logits": 0,
    }.items():
        with pytest.raises(ConfigError, match=rf"loss\.{key}={value!r} does not fit; use "):
            LossOptions(**{key: value})
    with pytest.raises(ConfigError, match="constant_length=None"):
        LossOptions(aggregation="constant_length")


@pytest.mark.slow  # Compiling the decoder takes longer than all else here.
def test_packed_equals_unpacked_on_the_decoder():
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=8, intermediate_size=12, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4
    )
    params = init_params(config, jax.random.key(0))
    # Matrices of size 0.4, as large as the width of 8 wants them; norm scales stay 1.
    params = jax.tree.map(lambda leaf, matrix: 20 * leaf if matrix else leaf, params, decay_mask(params))
    update = make_update_step(functools.partial(models_forward, config), head_weights, DESCENT, LossOptions())
    results, sequences = [], make_sequences()
    for batch in (pack(sequences, row_length=ROW), one_per_row(sequences)):
        state = TrainState.create(params, DESCENT)
        state, metrics = update(state, micro_batches(batch, 6, capacity_multiple=64))
        grads = jax.tree.map(lambda before, after: np.asarray(before - after), params, state.params)
        results.append((read_metrics(metrics, params, step=0), grads))
    assert_same(*results)
    assert results[0][0]["update/grad_norm"] > 0.01


LORA_BASE = ModelConfig(
    vocab_size=VOCAB, hidden_size=8, intermediate_size=12, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4
)


def lora_update():
    """Returns (update, optimizer, adapters) on a frozen decoder."""
    model = dataclasses.replace(LORA_BASE, lora=LoraConfig(rank=2, targets=("q", "v", "down")))
    optimizer = optax.adam(0.1)
    options = LossOptions(kl_coef=0.1)
    frozen = init_params(LORA_BASE, jax.random.key(0))
    update = make_update_step(functools.partial(models_forward, model), head_weights, optimizer, options, frozen=frozen)
    return update, optimizer, init_adapters(model, jax.random.key(1))


def test_adapters_alone_are_trained_saved_and_resumed_bit_for_bit(tmp_path):
    update, optimizer, adapters = lora_update()
    before = jax.tree.map(np.array, update.frozen)
    micro, state = split(make_sequences()), TrainState.create(adapters, optimizer)
    state, first = update(state, micro, adapters)
    assert read_metrics(first, state.params, step=0)["loss/kl"] == pytest.approx(0, abs=1e-7)  # B is 0: the base itself
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, {})
        ahead, _ = update(state, micro, adapters)
        again, second = update(checkpointer.restore(TrainState.create(adapters, optimizer)).arrays, micro, adapters)
    jax.tree.map(np.testing.assert_array_equal, ahead, again)
    assert float(second["loss/kl"]) > 1e-6
    sizes = jax.tree.map(np.size, adapters)
    assert jax.tree.map(np.size, ahead.params) == sizes
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(ahead.opt_state)) == 2 * sum(jax.tree.leaves(sizes)) + 1
    jax.tree.map(np.testing.assert_array_equal, update.frozen, before)
    moved = jax.tree.map(lambda new, old: np.abs(new - old).max(), ahead.params, adapters)
    assert all(change > 1e-3 for change in jax.tree.leaves(moved))
