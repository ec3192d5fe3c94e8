"""Optional initialisation for small base models: heads that look a fixed number of tokens back from the first step.

Copying a named thing needs two heads in series: one that writes each token's predecessor into the residual, and one
that looks for it (induction heads, arXiv 2209.11895). A small model finds the first of the pair late. Here it is put
in: with constant queries and keys, rotary embedding alone makes the score a function of the distance, so a head's q
and k biases can be chosen such that it reads the token `offset` places back. Everything stays trainable.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sage_jax.errors import ConfigError
from sage_jax.models.config import ModelConfig
from sage_jax.models.rope import inverse_frequencies
from sage_jax.models.transformer import Params

_MAX_AMPLITUDE = 2.0**20


def add_previous_token_heads(
    params: Params,
    config: ModelConfig,
    *,
    layers: Sequence[int] = (0,),
    kv_head: int = 0,
    offsets: Sequence[int] = (1, 2),
    weight: float = 0.95,
    length: int = 2048,
) -> Params:
    """Makes the query heads of one key head look a fixed number of tokens back.

    The score of a token `delta` places back becomes
    A / sqrt(K) * sum_f cos(theta_f * (delta - offset)): the key bias has phase 0 at every rotary frequency f, the
    query bias has phase -theta_f * offset, and both projections are zero. A is the smallest amplitude that gives the
    wanted token `weight` of the softmax over `length` tokens. Values and output projection keep their random draw.

    Args:
      params: stacked parameters of a model with QKV biases.
      config: its config.
      layers: layers to change.
      kv_head: the key head to give up for it; its whole group of query heads changes.
      offsets: distance each query head of the group looks back, in tokens; repeated in turn when fewer than heads.
      weight: share of the softmax that the wanted token gets, between 0 and 1.
      length: context, in tokens, up to which it holds.

    Returns:
      New parameters; the input is not changed.

    Raises:
      ConfigError: no QKV biases, QK-norm (it would undo the amplitude), an index out of range, or a weight that the
        model's frequencies cannot give.
    """
    _check(config, layers, kv_head, offsets, weight, length)
    inverse, _ = inverse_frequencies(config)
    group = config.num_heads // config.num_kv_heads
    back = [offsets[i % len(offsets)] for i in range(group)]
    size = max(_amplitude(config, offset, weight, length) for offset in set(back)) ** 0.5
    phases = np.outer(back, inverse)
    query_bias = size * np.concatenate([np.cos(phases), -np.sin(phases)], axis=-1)
    key_bias = size * np.concatenate([np.ones_like(inverse), np.zeros_like(inverse)])

    heads = np.arange(kv_head * group, (kv_head + 1) * group)
    rows = np.asarray(layers)
    attn = params["layers"]["attn"]
    attn = {
        **attn,
        "q": _constant(attn["q"], rows[:, None], heads[None, :], query_bias),
        "k": _constant(attn["k"], rows, kv_head, key_bias),
    }
    return {**params, "layers": {**params["layers"], "attn": attn}}


def previous_token_scores(config: ModelConfig, offset: int, length: int) -> np.ndarray:
    """Returns the score of every distance 0 .. length - 1 at amplitude 1, [length] float64."""
    inverse, factor = inverse_frequencies(config)
    distance = np.arange(length)[:, None] - offset
    return factor**2 / np.sqrt(config.head_dim) * np.cos(distance * inverse).sum(-1)


def _constant(projection: Params, layers, heads, bias: np.ndarray) -> Params:
    """Sets the bias and clears the kernel of the given heads, so that they no longer depend on the input."""
    kernel, old = jnp.asarray(projection["kernel"]), jnp.asarray(projection["bias"])
    value: jax.Array = jnp.broadcast_to(jnp.asarray(bias, old.dtype), old[layers, heads].shape)
    kernel = jnp.moveaxis(jnp.moveaxis(kernel, 2, 1).at[layers, heads].set(0.0), 1, 2)
    return {"kernel": kernel, "bias": old.at[layers, heads].set(value)}


def _amplitude(config: ModelConfig, offset: int, weight: float, length: int) -> float:
    """Finds the smallest amplitude by bisection: the softmax weight of the largest score grows with amplitude."""
    scores = previous_token_scores(config, offset, length)
    gaps = scores - scores[offset]

    def enough(amplitude: float) -> bool:
        return 1.0 / np.exp(np.minimum(amplitude * gaps, 700.0)).sum() >= weight

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > _MAX_AMPLITUDE:
            raise ConfigError(
                f"weight={weight}, length={length}: no amplitude singles out offset {offset} with "
                f"model.head_dim={config.head_dim} and model.rope_theta={config.rope_theta}; take a wider head"
            )
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check(
    config: ModelConfig, layers: Sequence[int], kv_head: int, offsets: Sequence[int], weight: float, length: int
) -> None:
    """Raises ConfigError for arguments that do not fit the model."""
    if not config.qkv_bias:
        raise ConfigError("model.qkv_bias=False: previous-token heads live in the q and k biases; set it to True")
    if config.qk_norm:
        raise ConfigError("model.qk_norm=True: the norm undoes the amplitude of previous-token heads; set it to False")
    if not layers or not all(0 <= layer < config.num_layers for layer in layers):
        raise ConfigError(f"layers={tuple(layers)}: must name layers from 0 to {config.num_layers - 1}")
    if not 0 <= kv_head < config.num_kv_heads:
        raise ConfigError(f"kv_head={kv_head}: must be from 0 to {config.num_kv_heads - 1}")
    if not offsets or not all(0 <= offset < length for offset in offsets):
        raise ConfigError(f"offsets={tuple(offsets)}: must be from 0 to length - 1 = {length - 1}")
    if not 0 < weight < 1:
        raise ConfigError(f"weight={weight}: must lie between 0 and 1")
