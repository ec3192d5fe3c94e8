"""How much arithmetic an update needs, and what share of the devices' peak that is (MFU).

Counted is what the model needs, not what a program does: recomputed activations, padding and the masked half of the
attention do not raise the figure (PaLM, arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax

from sage_jax.data.packing import PackedBatch
from sage_jax.models.config import ModelConfig
from sage_jax.models.transformer import abstract_params

# Dense bfloat16 multiplications and additions a second, in units of 1e12, by a part of `device_kind`. Sources: Cloud
# TPU's pages of each chip, NVIDIA's data sheets (SXM).
_PEAK_TFLOPS = {
    "v4": 275.0,
    "v5 lite": 197.0,
    "v5e": 197.0,
    "v5": 459.0,
    "v6 lite": 918.0,
    "v6e": 918.0,
    "A100": 312.0,
    "H100": 989.0,
    "H200": 989.0,
}


def update_flops(model: ModelConfig, batch: PackedBatch, *, reference: bool = False) -> float:
    """Returns the multiplications and additions of one update on a batch.

    With m weights in a layer's matrices, t tokens, p pairs of a query and a key it sees, c trained tokens:

      forward = 2 t m L + 4 p H K L + 2 c D V

    The backward pass costs twice the forward one; half of that is the gradient of weights, which frozen matrices under
    adapters do not have (attention has no weights). A reference costs another forward pass.

    Args:
      model: the policy, with its adapters.
      batch: packed rows.
      reference: whether a reference policy is run.
    """
    real = batch.segment_ids > 0
    tokens, trained = int(real.sum()), int((batch.mask > 0).sum())
    pairs = int((batch.positions[real].astype("int64") + 1).sum())
    frozen, adapters = _matrix_weights(model)
    head = 2.0 * trained * model.hidden_size * model.vocab_size
    attention = 4.0 * pairs * model.num_heads * model.head_dim * model.num_layers
    weights_trained = model.lora is None
    forward = 2.0 * tokens * (frozen + adapters) + attention + head
    backward = 2.0 * attention + 2.0 * tokens * (frozen * (2 if weights_trained else 1) + 2 * adapters)
    backward += head * (2 if weights_trained else 1)
    return forward * (2 if reference else 1) + backward


def mfu(flops: float, seconds: float, *, peak_tflops: float = 0.0, devices: Sequence[jax.Device] = ()) -> float | None:
    """Returns the share of the peak that was reached, None where the peak of a device is not known (a CPU, say).

    Args:
      flops: see `update_flops`.
      seconds: time it took.
      peak_tflops: peak of one device in 1e12 a second; 0 takes the published one of its kind.
      devices: all that took part; default: all there are.
    """
    devices = devices or jax.devices()
    peak = peak_tflops or _published(devices[0].device_kind)
    return flops / (seconds * peak * 1e12 * len(devices)) if peak and seconds > 0 else None


def _published(kind: str) -> float:
    """Returns the peak of a kind of device in 1e12 a second, 0 when it is not in the table."""
    fitting = [name for name in _PEAK_TFLOPS if name.lower() in kind.lower()]
    return _PEAK_TFLOPS[max(fitting, key=len)] if fitting else 0.0


def _matrix_weights(model: ModelConfig) -> tuple[int, int]:
    """Counts the weights of all layers' matrices, and those of their adapters."""
    counts = {"kernel": 0, "lora_a": 0, "lora_b": 0}
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(model)["layers"]):
        if path[-1].key in counts:
            counts[path[-1].key] += math.prod(leaf.shape)
    return counts["kernel"], counts["lora_a"] + counts["lora_b"]
