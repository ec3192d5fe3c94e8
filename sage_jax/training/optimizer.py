"""Optimizers and learning-rate schedules from validated options (optax); the one place that reads optimizer keys."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import optax
import optax.contrib

from sage_jax.errors import ConfigError
from sage_jax.setting_groups import OPTIMIZERS, SCHEDULES
from sage_jax.settings import RunSettings


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """Options of the optimizer.

    Attributes:
      name: "adamw"; "adafactor" (arXiv 1804.04235: row and column sums in place of a second moment, no first moment;
        step sizes are absolute, so that one learning rate serves it and AdamW); or "muon" (orthogonalised momentum
        for the layer matrices, Nesterov AdamW for the rest).
      learning_rate: peak learning rate.
      schedule: after the warm-up "constant", or "linear" or "cosine" to `final_fraction` of the peak at `total_steps`.
      warmup_steps: updates of linear warm-up from 0; the first update uses 1 / warmup_steps of the peak.
      total_steps: updates of the whole run, needed by "linear" and "cosine".
      final_fraction: end of the decay, in units of the peak.
      b1, b2, eps: Adam's.
      weight_decay: decoupled, multiplied by the learning rate; not on norm scales and biases.
      max_grad_norm: global-norm clip before everything else; None switches it off.
      moment_dtype: dtype of the first moment. The second stays in float32: with b2 = 0.999 it moves by a thousandth
        at a time, and bfloat16 holds nothing finer than a 256th.
    """

    name: Literal["adamw", "adafactor", "muon"] = "adamw"
    learning_rate: float = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    final_fraction: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float | None = 1.0
    moment_dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        _check(self.name in OPTIMIZERS, "optimizer.name", self.name, " or ".join(OPTIMIZERS))
        _check(self.schedule in SCHEDULES, "optimizer.schedule", self.schedule, " or ".join(SCHEDULES))
        dtypes = ("float32", "bfloat16")
        _check(self.moment_dtype in dtypes, "optimizer.moment_dtype", self.moment_dtype, " or ".join(dtypes))
        _check(self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "a number above 0")
        _check(self.warmup_steps >= 0, "optimizer.warmup_steps", self.warmup_steps, "0 or more")
        _check(0 <= self.final_fraction <= 1, "optimizer.final_fraction", self.final_fraction, "a number in [0, 1]")
        _check(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        norm = self.max_grad_norm
        _check(norm is None or norm > 0, "optimizer.max_grad_norm", norm, "a number above 0, or None")
        if self.schedule != "constant":
            fits = self.total_steps is not None and self.total_steps > self.warmup_steps
            needed = f"more than warmup_steps={self.warmup_steps} for a {self.schedule} schedule"
            _check(fits, "optimizer.total_steps", self.total_steps, needed)


def rl_options(settings: RunSettings) -> OptimizerOptions:
    """Returns the optimizer of RL."""
    own, rl = settings.optimizer, settings.rl
    total = max(rl.rounds * rl.epochs * rl.minibatches, own.lr_warmup + 1)
    return _options(settings, own.lr, own.lr_schedule, own.lr_warmup, total)


def sft_options(settings: RunSettings, updates: int) -> OptimizerOptions:
    """Returns the optimizer of a cold start of so many updates: a cosine after 10 % of warm-up."""
    return _options(settings, settings.sft.sft_lr, "cosine", max(1, updates // 10), updates + 1)


def _options(settings: RunSettings, lr: float, schedule: Any, warmup: int, total: int) -> OptimizerOptions:
    own = settings.optimizer
    return OptimizerOptions(
        name=own.optimizer,
        learning_rate=lr,
        schedule=schedule,
        warmup_steps=warmup,
        total_steps=total,
        weight_decay=own.weight_decay,
        max_grad_norm=own.max_grad_norm or None,
        moment_dtype=own.moment_dtype,
    )


def make_schedule(options: OptimizerOptions) -> optax.Schedule:
    """Returns update number (from 0) -> learning rate."""
    peak, warmup = options.learning_rate, options.warmup_steps
    body: optax.Schedule = optax.constant_schedule(peak)
    if options.total_steps is not None and options.schedule == "cosine":
        body = optax.cosine_decay_schedule(peak, options.total_steps - warmup, options.final_fraction)
    elif options.total_steps is not None and options.schedule == "linear":
        body = optax.linear_schedule(peak, peak * options.final_fraction, options.total_steps - warmup)
    if not warmup:
        return body
    # Reaches the peak at update number `warmup`, and never wastes an update at learning rate 0.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, body], [warmup])


def make_optimizer(options: OptimizerOptions) -> optax.GradientTransformation:
    """Returns clip -> AdamW, Adafactor or Muon with the schedule."""
    schedule = make_schedule(options)
    makers = {"adamw": _adamw, "adafactor": _adafactor, "muon": _muon}
    base = makers[options.name](options, schedule)
    if options.max_grad_norm is None:
        return base
    return optax.chain(optax.clip_by_global_norm(options.max_grad_norm), base)


def _adamw(options: OptimizerOptions, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        schedule,
        b1=options.b1,
        b2=options.b2,
        eps=options.eps,
        mu_dtype=options.moment_dtype,
        weight_decay=options.weight_decay,
        mask=decay_mask,
    )


def _adafactor(options: OptimizerOptions, schedule: optax.Schedule) -> optax.GradientTransformation:
    # Not optax.adafactor, whose weight decay is not multiplied by the learning rate.
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.add_decayed_weights(options.weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(schedule),
    )


def _muon(options: OptimizerOptions, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.contrib.muon(
        schedule,
        eps=options.eps,
        mu_dtype=options.moment_dtype,
        weight_decay=options.weight_decay,
        weight_decay_mask=decay_mask,
        adam_b1=options.b1,
        adam_b2=options.b2,
        adam_weight_decay=options.weight_decay,
        muon_weight_dimension_numbers=muon_dimensions,
        # 0.2 gives Muon's update the size of AdamW's (arXiv 2502.16982), so that one learning rate serves both.
        consistent_rms=0.2,
    )


def decay_mask(params: Any) -> Any:
    """Returns True for leaves that decay: all but those whose path speaks of a norm, a scale or a bias."""

    def decays(path, _):
        name = jax.tree_util.keystr(path).lower()
        return not any(word in name for word in ("norm", "scale", "bias"))

    return jax.tree_util.tree_map_with_path(decays, params)


def muon_dimensions(params: Any) -> Any:
    """Returns Muon's matrix axes for the layers' kernels, None (AdamW) for embeddings, norm scales and biases.

    Layers are stacked along axis 0, so the number of axes does not tell a matrix from a stack of vectors; the name
    does: leaves called "kernel" are matrices [L, in, out], attention's [L, D, H, K], and its output "o" [L, H, K, D].
    """

    def axes(path, leaf):
        names = [getattr(entry, "key", None) for entry in path]
        if names[-1] != "kernel":
            return None
        if leaf.ndim == 4 and names[-2] == "o":
            return optax.contrib.MuonDimensionNumbers(reduction_axis=(1, 2), output_axis=3)
        return optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=tuple(range(2, leaf.ndim)))

    return jax.tree_util.tree_map_with_path(axes, params)


def _check(fits: bool, key: str, value: Any, wanted: str) -> None:
    """Raises ConfigError naming key, value and what would fit."""
    if not fits:
        raise ConfigError(f"{key}={value!r} does not fit; use {wanted}")
