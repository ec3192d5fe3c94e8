"""Optimizers and learning-rate schedules from validated options (optax)."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import optax
import optax.contrib

from sage_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """Options of the optimizer.

    Attributes:
      name: "adamw", or "muon" (orthogonalised momentum for the layer matrices, Nesterov AdamW for the rest).
      learning_rate: peak learning rate.
      schedule: "constant" or "cosine" (to `final_fraction` of the peak at `total_steps`), after the warm-up.
      warmup_steps: updates of linear warm-up from 0; the first update uses 1 / warmup_steps of the peak.
      total_steps: updates of the whole run, needed by "cosine".
      final_fraction: end of the cosine, in units of the peak.
      b1, b2, eps: Adam's.
      weight_decay: decoupled, multiplied by the learning rate; not on norm scales and biases.
      max_grad_norm: global-norm clip before everything else; None switches it off.
    """

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1e-6
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    final_fraction: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        _check(self.name in ("adamw", "muon"), "optimizer.name", self.name, "'adamw' or 'muon'")
        _check(self.schedule in ("constant", "cosine"), "optimizer.schedule", self.schedule, "'constant' or 'cosine'")
        _check(self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "a number above 0")
        _check(self.warmup_steps >= 0, "optimizer.warmup_steps", self.warmup_steps, "0 or more")
        _check(0 <= self.final_fraction <= 1, "optimizer.final_fraction", self.final_fraction, "a number in [0, 1]")
        _check(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        norm = self.max_grad_norm
        _check(norm is None or norm > 0, "optimizer.max_grad_norm", norm, "a number above 0, or None")
        if self.schedule == "cosine":
            fits = self.total_steps is not None and self.total_steps > self.warmup_steps
            needed = f"more than warmup_steps={self.warmup_steps} for a cosine"
            _check(fits, "optimizer.total_steps", self.total_steps, needed)


def make_schedule(options: OptimizerOptions) -> optax.Schedule:
    """Returns update number (from 0) -> learning rate."""
    peak, warmup = options.learning_rate, options.warmup_steps
    body: optax.Schedule
    if options.schedule == "cosine" and options.total_steps is not None:
        body = optax.cosine_decay_schedule(peak, options.total_steps - warmup, options.final_fraction)
    else:
        body = optax.constant_schedule(peak)
    if not warmup:
        return body
    # Reaches the peak at update number `warmup`, and never wastes an update at learning rate 0.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, body], [warmup])


def make_optimizer(options: OptimizerOptions) -> optax.GradientTransformation:
    """Returns clip -> AdamW or Muon with the schedule."""
    schedule = make_schedule(options)
    if options.name == "adamw":
        base = optax.adamw(
            schedule,
            b1=options.b1,
            b2=options.b2,
            eps=options.eps,
            weight_decay=options.weight_decay,
            mask=decay_mask,
        )
    else:
        base = optax.contrib.muon(
            schedule,
            eps=options.eps,
            weight_decay=options.weight_decay,
            weight_decay_mask=decay_mask,
            adam_b1=options.b1,
            adam_b2=options.b2,
            adam_weight_decay=options.weight_decay,
            muon_weight_dimension_numbers=muon_dimensions,
            # 0.2 gives Muon's update the size of AdamW's (arXiv 2502.16982), so that one learning rate serves both.
            consistent_rms=0.2,
        )
    if options.max_grad_norm is None:
        return base
    return optax.chain(optax.clip_by_global_norm(options.max_grad_norm), base)


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
