"""The jitted update: micro-batches of packed rows in, new state and scalar metrics out. RL and SFT share it.

One update scans over micro-batches and adds up gradients of a loss that is normalised over the whole batch, so its
result does not depend on how the batch is split. Only trained tokens reach the vocabulary head. Nothing in the step
waits for the host: an update with a non-finite loss or gradient leaves the state as it was and says so in its
metrics, and `read_metrics` turns that into an error when the trainer reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from sage_jax.data.packing import MicroBatches
from sage_jax.errors import ConfigError, NumericsError
from sage_jax.losses.logprobs import MAX_LOGITS, TokenScores, token_logprobs
from sage_jax.losses.policy import (
    AGGREGATIONS,
    KL_KINDS,
    RATIO_LEVELS,
    Aggregation,
    KlKind,
    RatioLevel,
    policy_loss,
    token_weights,
)
from sage_jax.losses.sft import sft_loss
from sage_jax.models.lora import join
from sage_jax.models.sharding import map_tokens, vocab_parts
from sage_jax.training.state import TrainState

# (params, ids [R, T], positions [R, T], segment_ids [R, T]) -> hidden states [R, T, D] after the final norm
ForwardFn = Callable[[Any, Int[Array, "R T"], Int[Array, "R T"], Int[Array, "R T"]], Float[Array, "R T D"]]
# params -> output embedding [V, D]
HeadFn = Callable[[Any], Float[Array, "V D"]]


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """Options of the loss; `losses.policy` says what each does.

    Attributes:
      kind: "policy" or "sft"; "sft" reads only aggregation, constant_length and max_logits.
      aggregation: "token_mean", "sequence_mean" or "constant_length".
      constant_length: tokens, for aggregation "constant_length".
      clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
      dual_clip: bound of the loss of negative advantages, above 1; None switches it off.
      kl_coef, kl_kind: KL to the reference; at 0 the reference is never run.
      entropy_coef: entropy bonus.
      importance_cap: truncated importance weight against the engine's log-probabilities; None switches it off.
      ratio_level: "token", or "sequence" for one ratio a sequence, which needs aggregation "sequence_mean".
      importance_level: the same for the importance weight, with any aggregation; None is as ratio_level.
      temperature: sampling temperature of the engine, by which logits are divided.
      max_logits: logits that exist at one time on a device.
    """

    kind: Literal["policy", "sft"] = "policy"
    aggregation: Aggregation = "token_mean"
    constant_length: int | None = None
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    kl_coef: float = 0.0
    kl_kind: KlKind = "k3"
    entropy_coef: float = 0.0
    importance_cap: float | None = None
    ratio_level: RatioLevel = "token"
    importance_level: RatioLevel | None = None
    temperature: float = 1.0
    max_logits: int = MAX_LOGITS

    def __post_init__(self) -> None:
        constant = self.aggregation == "constant_length"
        checks = {
            "kind": (self.kind in ("policy", "sft"), "'policy' or 'sft'"),
            "aggregation": (self.aggregation in AGGREGATIONS, " or ".join(AGGREGATIONS)),
            "constant_length": (not constant or (self.constant_length or 0) >= 1, "1 or more tokens"),
            "clip_low": (0 < self.clip_low <= 1, "a number in (0, 1]"),
            "clip_high": (self.clip_high > 0, "a number above 0"),
            "dual_clip": (self.dual_clip is None or self.dual_clip > 1, "a number above 1, or None"),
            "kl_coef": (self.kl_coef >= 0, "0 or more"),
            "kl_kind": (self.kl_kind in KL_KINDS, " or ".join(KL_KINDS)),
            "entropy_coef": (self.entropy_coef >= 0, "0 or more"),
            "importance_cap": (self.importance_cap is None or self.importance_cap > 0, "a number above 0, or None"),
            "ratio_level": (
                self.ratio_level in RATIO_LEVELS
                and (self.ratio_level == "token" or self.aggregation == "sequence_mean"),
                "'token', or 'sequence' with aggregation='sequence_mean'",
            ),
            "importance_level": (self.importance_level in (None, *RATIO_LEVELS), "'token', 'sequence' or None"),
            "temperature": (self.temperature > 0, "a number above 0"),
            "max_logits": (self.max_logits >= 1, "1 or more"),
        }
        for key, (fits, wanted) in checks.items():
            if not fits:
                raise ConfigError(f"loss.{key}={getattr(self, key)!r} does not fit; use {wanted}")


@dataclasses.dataclass(frozen=True)
class UpdateStep:
    """One update: `update(state, micro, ref_params=None) -> (state, metrics)`.

    Attributes:
      jitted: the compiled function of (state, micro, ref_params, frozen), for lowering without running.
      options: the loss.
      frozen: parameters that are used and not trained: the base under adapters. None without.
    """

    jitted: Any
    options: LossOptions
    frozen: Any = None

    def __call__(
        self, state: TrainState, micro: MicroBatches, ref_params: Any = None
    ) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
        """Applies one update; see `make_update_step`. Raises ConfigError when a needed reference is missing."""
        uses_reference = self.options.kind == "policy" and self.options.kl_coef > 0
        if uses_reference and ref_params is None:
            raise ConfigError(f"loss.kl_coef={self.options.kl_coef} needs ref_params; pass them or set kl_coef to 0")
        return self.jitted(state, micro, ref_params if uses_reference else None, self.frozen)


def make_update_step(
    forward_fn: ForwardFn,
    head_fn: HeadFn,
    optimizer: optax.GradientTransformation,
    options: LossOptions,
    *,
    frozen: Any = None,
    layout: TrainState | None = None,
) -> UpdateStep:
    """Returns update(state, micro, ref_params=None) -> (state, metrics), jitted; the state passed in is donated.

    Metrics are float32 scalars on the device; `read_metrics` waits for them. Means are over trained tokens.
      always: loss/total, tokens/trained, update/grad_norm (before clipping), update/step_norm, finite (0 when the
        update was not applied), nonfinite_leaves, nonfinite_leaf (the first gradient leaf that is not finite, or -1)
      sft: sft/loss, sft/accuracy
      policy: loss/policy, loss/clip_low, loss/clip_high, loss/clip_dual, loss/ratio, loss/ratio_max, loss/entropy,
        loss/engine_gap, loss/engine_gap_max, loss/engine_kl; loss/kl if kl_coef > 0; loss/importance_weight if
        importance_cap is set

    Args:
      forward_fn: params and packed rows -> hidden states.
      head_fn: params -> output embedding.
      optimizer: see `optimizer.make_optimizer`.
      options: the loss.
      frozen: parameters joined to the trained ones (and to the reference's) before `forward_fn` and `head_fn` see
        them. The state, the gradients and the optimizer have the trained ones alone.
      layout: shardings of the state (`state.state_layout`): an update leaves it as it found it.
    """

    def update(state: TrainState, micro: MicroBatches, ref_params: Any, frozen: Any = None):
        weights = token_weights(
            micro.mask,
            aggregation=options.aggregation,
            sequence_ids=micro.sequence_ids,
            length=options.constant_length,
        )
        num_tokens = jnp.sum(micro.mask)

        def micro_loss(params, part: MicroBatches, part_weights):
            ref_logprobs = None
            if ref_params is not None:
                ref_logprobs = _scores(forward_fn, head_fn, options, _whole(ref_params, frozen), part).logprobs
            whole = _whole(params, frozen)
            return _loss(
                forward_fn, head_fn, options, whole, part, part_weights, num_tokens, ref_logprobs, micro.mask.size
            )

        loss, metrics, grads = _accumulate(micro_loss, state.params, micro, weights, layout and layout.params)
        new_state, update_metrics = _apply(optimizer, state, loss, grads)
        prefix = "sft" if options.kind == "sft" else "loss"
        metrics = {f"{prefix}/{name}": value for name, value in metrics.items()}
        metrics |= {"loss/total": loss, "tokens/trained": num_tokens, **update_metrics}
        return new_state, {name: value.astype(jnp.float32) for name, value in metrics.items()}

    jitted = jax.jit(update, donate_argnums=0, out_shardings=layout and (layout, None))
    return UpdateStep(jitted, options, frozen)


def make_logprob_fn(
    forward_fn: ForwardFn, head_fn: HeadFn, options: LossOptions, *, frozen: Any = None
) -> Callable[[Any, MicroBatches], Float[Array, "M C"]]:
    """Returns logprobs(params, micro) -> [M, C], jitted: the old log-probabilities of several epochs.

    Use as `micro = micro._replace(old_logprobs=logprobs(state.params, micro))` before the first update.
    """

    @jax.jit
    def logprobs(params, frozen, micro: MicroBatches):
        whole = _whole(params, frozen)
        return jax.lax.map(lambda part: _scores(forward_fn, head_fn, options, whole, part).logprobs, micro)

    return lambda params, micro: logprobs(params, frozen, micro)


def read_metrics(metrics: Mapping[str, Any], params: Any, *, step: int) -> dict[str, float]:
    """Waits for an update's metrics and returns those to be logged, as floats.

    Args:
      metrics: what the update returned.
      params: parameters of the same structure as the state's, for the names of leaves.
      step: number of the update, for the message.

    Raises:
      NumericsError: the update was not applied; names the step, the loss, and the first gradient leaf at fault.
    """
    values = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
    finite, index, count = (values.pop(name) for name in ("finite", "nonfinite_leaf", "nonfinite_leaves"))
    if finite:
        return values
    leaves = jax.tree_util.tree_leaves_with_path(params)
    loss = f"loss {values['loss/total']}"
    if index < 0:
        raise NumericsError(f"step {step}: {loss} is not finite, though every gradient is; the update was not applied")
    path, _ = leaves[int(index)]
    broken = [jax.tree_util.keystr(path) for path, leaf in leaves if not bool(jnp.all(jnp.isfinite(leaf)))]
    weights = f"; parameters already not finite: {', '.join(broken[:3])}" if broken else ""
    raise NumericsError(
        f"step {step}: the gradient of {jax.tree_util.keystr(path)} is not finite (the first of "
        f"{int(count)} of {len(leaves)} leaves; {loss}); the update was not applied{weights}"
    )


def combine_updates(updates: Sequence[Mapping[str, float]], *, epochs: int = 1) -> dict[str, float]:
    """Returns one set of metrics for the updates of a round, in their order.

    loss/*: the mean over updates, weighted by their trained tokens, of names ending in "_max" the largest value;
    tokens/trained: the sum over one pass; the rest, what the last update says. The engine's gap and KL are taken
    against the parameters that sampled, so every pass repeats them, and their mean is that over each token once.

    Args:
      updates: metrics of at least one update, from `read_metrics`.
      epochs: passes over the same tokens.
    """
    tokens = np.array([one["tokens/trained"] for one in updates])
    shares = tokens / max(tokens.sum(), 1.0)
    combined = dict(updates[-1])
    for name in combined:
        if name.startswith("loss/"):
            values = [one[name] for one in updates]
            combined[name] = max(values) if name.endswith("_max") else float(np.dot(values, shares))
    return combined | {"tokens/trained": float(tokens.sum()) / epochs}


def _whole(params: Any, frozen: Any) -> Any:
    return params if frozen is None else join(params, frozen)


def _scores(forward_fn, head_fn, options: LossOptions, params, part: MicroBatches) -> TokenScores:
    """Returns the scores [C] of one micro-batch's trained tokens."""
    # Only a batch that shares prefixes asks more of a forward function than its four arguments.
    shared = {} if part.ends is None else {"ends": part.ends}
    hidden = forward_fn(params, part.ids, part.positions, part.segment_ids, **shared)

    def score(hidden, source, targets, head):
        return token_logprobs(
            hidden[source],
            head,
            targets,
            temperature=options.temperature if options.kind == "policy" else 1.0,
            max_logits=options.max_logits,
            entropy_gradient=options.entropy_coef > 0,
            parts=vocab_parts(len(head)),
        )

    return map_tokens(score, hidden, part.source, part.targets, head_fn(params))


def _loss(
    forward_fn, head_fn, options: LossOptions, params, part: MicroBatches, weights, num_tokens, ref_logprobs, sequences
):
    """Returns one micro-batch's share of the loss and of the metrics."""
    scores = _scores(forward_fn, head_fn, options, params, part)
    if options.kind == "sft":
        return sft_loss(scores.logprobs, part.mask, is_top=scores.is_top, weights=weights, num_tokens=num_tokens)
    return policy_loss(
        scores.logprobs,
        part.advantages,
        part.mask,
        old_logprobs=part.old_logprobs,
        ref_logprobs=ref_logprobs,
        engine_logprobs=part.engine_logprobs,
        entropy=scores.entropy,
        weights=weights,
        num_tokens=num_tokens,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        dual_clip=options.dual_clip,
        kl_coef=options.kl_coef,
        kl_kind=options.kl_kind,
        entropy_coef=options.entropy_coef,
        importance_cap=options.importance_cap,
        ratio_level=options.ratio_level,
        importance_level=options.importance_level,
        sequence_ids=part.sequence_ids,
        num_sequences=sequences,  # ids run over the whole batch
    )


def _accumulate(micro_loss, params, micro: MicroBatches, weights, layout: Any = None):
    """Returns loss, metrics and gradients summed over micro-batches; those without trained tokens are skipped.

    With a layout, the sums are cut like the parameters, so that each micro-batch's gradient is summed over the devices
    and cut in one go.
    """

    def laid(grads):
        return grads if layout is None else jax.lax.with_sharding_constraint(grads, layout)

    first = jax.tree.map(lambda array: array[0], (micro, weights))
    loss_shape, metric_shapes = jax.eval_shape(micro_loss, params, *first)
    zeros = (
        jnp.zeros((), loss_shape.dtype),
        {name: jnp.zeros((), shape.dtype) for name, shape in metric_shapes.items()},
        laid(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), params)),
    )

    def add(carry, inputs):
        (value, metrics), grads = jax.value_and_grad(micro_loss, has_aux=True)(params, *inputs)
        loss, sums, total = carry
        combined = {
            name: jnp.maximum(sums[name], metric) if name.endswith("_max") else sums[name] + metric
            for name, metric in metrics.items()
        }
        # Sums in float32 or wider: bfloat16 would lose every micro-batch after the first few hundred.
        return loss + value, combined, jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, laid(grads))

    def body(carry, inputs):
        has_tokens = jnp.any(inputs[0].mask > 0)
        return jax.lax.cond(has_tokens, add, lambda carry, _: carry, carry, inputs), None

    return jax.lax.scan(body, zeros, (micro, weights))[0]


def _apply(optimizer: optax.GradientTransformation, state: TrainState, loss, grads):
    """Returns the next state, or the same one when loss or gradients are not finite, and the update's metrics."""
    leaf_finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads)])
    finite = jnp.all(leaf_finite) & jnp.isfinite(loss)

    def skip(grads, opt_state, _):
        return jax.tree.map(jnp.zeros_like, grads), opt_state

    # A branch, not a choice between old and new leaf by leaf, for which XLA copies all parameters and moments first.
    updates, opt_state = jax.lax.cond(finite, optimizer.update, skip, grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(params, opt_state, state.step + finite), {
        "update/grad_norm": optax.tree.norm(grads),
        "update/step_norm": optax.tree.norm(updates),
        "finite": finite,
        "nonfinite_leaves": jnp.sum(~leaf_finite),
        "nonfinite_leaf": jnp.where(jnp.all(leaf_finite), -1, jnp.argmin(leaf_finite)),
    }
