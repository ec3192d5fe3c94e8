"""One decoder that is Qwen2/2.5, Qwen3, Llama or SmolLM2 by its config.

The modules below hold the parameters and the arithmetic of one layer; `Transformer` holds all layers stacked, each
parameter [L, ...]. Everything outside this file works with a plain nested dict of arrays and the pure functions at
the end: `forward` for training (layers scanned) and `forward_cached` for generation (layers unrolled, the caller
owns the key-value cache). Both run the same `Block`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from sage_jax.errors import ConfigError
from sage_jax.models.attention import attend_packed, segment_ends
from sage_jax.models.config import LoraConfig, ModelConfig, RopeScaling
from sage_jax.models.rope import rope_table, rotate
from sage_jax.models.sharding import constrain

__all__ = [
    "ModelConfig",
    "Params",
    "RopeScaling",
    "Transformer",
    "abstract_params",
    "forward",
    "forward_cached",
    "head_weights",
    "init_params",
    "logical_axes",
    "unstack_layers",
]

Params = dict[str, Any]
# attend(q [N,T,H,K], k [N,T,G,K], v [N,T,G,K], cache) -> (out [N,T,H,K], cache)
Attend = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]

INIT_STD = 0.02  # Qwen2 and Llama configs: initializer_range
_PROJECTED = "projected"
_POLICIES = {
    # Keeps projections, recomputes scores. A policy sees no product inside a custom rule, hence the name.
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(_PROJECTED),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def _param(value: jax.Array, *axes: str) -> nnx.Param:
    """Wraps a parameter with its logical axis names (sharding.py turns them into a layout)."""
    return nnx.Param(value, logical_axes=axes)


def _adapter(config: ModelConfig, target: str) -> LoraConfig | None:
    return config.lora if config.lora is not None and target in config.lora.targets else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: jax.Array, kernel: jax.Array, contract: int) -> jax.Array:
    """Returns the product over the last `contract` axes of x and the first ones of the kernel."""
    return jnp.tensordot(x, kernel, axes=contract)


def _product_forward(x: jax.Array, kernel: jax.Array, contract: int):
    return _product(x, kernel, contract), (x, kernel)


def _product_backward(contract: int, kept, d_out: jax.Array):
    """Gradients of x and kernel, the latter as x' d_out.

    JAX's own rule takes (d_out' x)', for which XLA:CPU writes d_out transposed: with the wide products of the MLP that
    was a fifth of an update.
    """
    x, kernel = kept
    tokens = tuple(range(x.ndim - contract))
    outputs = tuple(range(len(tokens), d_out.ndim)), tuple(range(contract, kernel.ndim))
    return jnp.tensordot(d_out, kernel, axes=outputs), jnp.tensordot(x, d_out, axes=(tokens, tokens))


_product.defvjp(_product_forward, _product_backward)


class Norm(nnx.Module):
    """Root-mean-square norm over the last axis, computed in float32 or wider."""

    def __init__(self, width: int, eps: float):
        self.eps = eps
        self.scale = _param(jnp.ones((width,), jnp.float32), "norm")

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        return wide.astype(x.dtype) * self.scale[...].astype(x.dtype)


class Projection(nnx.Module):
    """A matrix product over the leading `contract` axes of the kernel, with an optional bias and low-rank adapter."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        shape: tuple[int, ...],
        axes: tuple[str, ...],
        *,
        contract: int = 1,
        bias: bool = False,
        lora: LoraConfig | None = None,
    ):
        self.contract = contract
        self.kernel = _param(jax.random.normal(rngs.params(), shape, jnp.float32) * INIT_STD, *axes)
        if bias:
            self.bias = _param(jnp.zeros(shape[contract:], jnp.float32), *axes[contract:])
        if lora is not None:
            self.lora_scale = lora.scale
            inputs, outputs = shape[:contract], shape[contract:]
            # PEFT's start: A uniform in +-1 / sqrt(inputs), B zero, so that the first forward pass is the base's.
            drawn = jax.random.uniform(rngs.params(), (*inputs, lora.rank), jnp.float32, -1.0, 1.0)
            self.lora_a = _param(drawn * math.prod(inputs) ** -0.5, *axes[:contract], "lora_rank")
            self.lora_b = _param(jnp.zeros((lora.rank, *outputs), jnp.float32), "lora_rank", *axes[contract:])

    def __call__(self, x: jax.Array) -> jax.Array:
        out = checkpoint_name(_product(x, self.kernel[...].astype(x.dtype), self.contract), _PROJECTED)
        if hasattr(self, "lora_a"):
            inner = jnp.tensordot(x, self.lora_a[...].astype(x.dtype), axes=self.contract)
            out = out + jnp.tensordot(inner, self.lora_b[...].astype(x.dtype), axes=1) * self.lora_scale
        return out + self.bias[...].astype(x.dtype) if hasattr(self, "bias") else out


class Attention(nnx.Module):
    """Grouped-query self-attention with rotary positions; what attends to what is the caller's `attend`."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        width, head_dim = config.hidden_size, config.head_dim
        query, shared = (width, config.num_heads, head_dim), (width, config.num_kv_heads, head_dim)
        lora, bias = functools.partial(_adapter, config), config.qkv_bias
        self.q = Projection(rngs, query, ("embed", "heads", "head_dim"), bias=bias, lora=lora("q"))
        self.k = Projection(rngs, shared, ("embed", "kv_heads", "head_dim"), bias=bias, lora=lora("k"))
        self.v = Projection(rngs, shared, ("embed", "kv_heads", "head_dim"), bias=bias, lora=lora("v"))
        out = (config.num_heads, head_dim, width)
        self.o = Projection(rngs, out, ("heads", "head_dim", "embed"), contract=2, bias=config.o_bias, lora=lora("o"))
        if config.qk_norm:
            self.q_norm = Norm(head_dim, config.rms_eps)
            self.k_norm = Norm(head_dim, config.rms_eps)

    def __call__(self, x: jax.Array, rope: tuple[jax.Array, jax.Array], attend: Attend, cache: Any):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, *rope), rotate(k, *rope)
        q = constrain(q, "rows", "length", "act_heads", "head_dim")
        k = constrain(k, "rows", "length", "act_kv_heads", "head_dim")
        v = constrain(v, "rows", "length", "act_kv_heads", "head_dim")
        out, cache = attend(q, k, v, cache)
        return self.o(constrain(out, "rows", "length", "act_heads", "head_dim")), cache


class Mlp(nnx.Module):
    """SwiGLU: down(silu(gate x) * up x) (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        width, inner = config.hidden_size, config.intermediate_size
        lora = functools.partial(_adapter, config)
        self.gate = Projection(rngs, (width, inner), ("embed", "mlp"), lora=lora("gate"))
        self.up = Projection(rngs, (width, inner), ("embed", "mlp"), lora=lora("up"))
        self.down = Projection(rngs, (inner, width), ("mlp", "embed"), lora=lora("down"))

    def __call__(self, x: jax.Array) -> jax.Array:
        inner = jax.nn.silu(self.gate(x)) * self.up(x)
        return self.down(constrain(inner, "rows", "length", "act_mlp"))


class Block(nnx.Module):
    """One layer: attention and MLP, each on a normed copy of the residual."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.attn_norm = Norm(config.hidden_size, config.rms_eps)
        self.attn = Attention(config, rngs)
        self.mlp_norm = Norm(config.hidden_size, config.rms_eps)
        self.mlp = Mlp(config, rngs)

    def __call__(self, x: jax.Array, rope: tuple[jax.Array, jax.Array], attend: Attend, cache: Any):
        out, cache = self.attn(self.attn_norm(x), rope, attend, cache)
        x = constrain(x + out, "rows", "length", "act_embed")
        x = constrain(x + self.mlp(self.mlp_norm(x)), "rows", "length", "act_embed")
        return x, cache


class Transformer(nnx.Module):
    """The whole decoder; every parameter of `layers` has a leading layer axis."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        shape = (config.vocab_size, config.hidden_size)

        def table() -> nnx.Param:
            return _param(jax.random.normal(rngs.params(), shape, jnp.float32) * INIT_STD, "vocab", "embed")

        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=(None, 0), out_axes=0)
        def stack(config: ModelConfig, rngs: nnx.Rngs) -> Block:
            return Block(config, rngs)

        self.embed = table()
        self.layers = stack(config, rngs)
        self.final_norm = Norm(config.hidden_size, config.rms_eps)
        if not config.tie_embeddings:
            self.head = table()

    def __call__(self, ids: jax.Array, positions: jax.Array, segment_ids: jax.Array, **options: Any) -> jax.Array:
        """Returns logits [N, T, V] in float32; options are those of `forward`."""
        params = nnx.to_pure_dict(nnx.state(self))
        hidden = forward(self.config, params, ids, positions, segment_ids, **options)
        return jnp.einsum("ntd,vd->ntv", hidden.astype(jnp.float32), head_weights(params).astype(jnp.float32))


@functools.partial(jax.jit, static_argnames="config")
def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Draws a model's parameters as a nested dict of float32 arrays: normal(0, 0.02), norms 1, biases 0."""
    _, state = nnx.split(Transformer(config, nnx.Rngs(key)))
    return nnx.to_pure_dict(state)


@functools.lru_cache(maxsize=32)
def _abstract_state(config: ModelConfig) -> nnx.State:
    return nnx.state(nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0))))


def abstract_params(config: ModelConfig) -> Params:
    """Returns the parameters' shapes and dtypes (jax.ShapeDtypeStruct) without allocating any."""
    return nnx.to_pure_dict(_abstract_state(config))


def logical_axes(config: ModelConfig) -> Params:
    """Returns the logical axis names of every parameter: a nested dict of tuples, "layers" first where stacked."""
    axes = nnx.to_pure_dict(_abstract_state(config), lambda variable: variable.logical_axes)
    stacked = jax.tree.map(lambda names: ("layers", *names), axes["layers"], is_leaf=lambda x: isinstance(x, tuple))
    return {**axes, "layers": stacked}


def head_weights(params: Params) -> Float[Array, "v d"]:
    """Returns the output head [V, D]: the embedding when the two are tied."""
    return params["head"] if "head" in params else params["embed"]


def unstack_layers(params: Params) -> Params:
    """Returns the parameters with `layers` as a tuple of one dict a layer.

    `forward_cached` takes either form; from the stacked one it would copy each layer's slice at every decoded token.
    """
    return {**params, "layers": _split_layers(params["layers"])}


def forward(
    config: ModelConfig,
    params: Params,
    ids: Int[Array, "n t"],
    positions: Int[Array, "n t"],
    segment_ids: Int[Array, "n t"],
    *,
    remat: str = "none",
    unroll: bool = False,
    compute_dtype: Any = None,
    attention_implementation: str = "auto",
    ends: Int[Array, "n t"] | None = None,
) -> Float[Array, "n t d"]:
    """Runs the decoder on packed rows.

    A token sees the tokens before it in its row that have its segment id; segment 0 is padding.

    Args:
      config: the model.
      params: nested dict from `init_params` or `hf.load`.
      ids: token ids [N, T].
      positions: rotary position of each token, counted inside its segment [N, T].
      segment_ids: [N, T]; equal ids see each other, 0 is padding.
      remat: what the backward pass recomputes: "none"; "dots" keeps the projections; "full" keeps layer inputs only.
      unroll: a Python loop over the layers in place of a scan: more memory and compile time, less time a step.
      compute_dtype: overrides `config.dtype`.
      attention_implementation: see `attention.attend_packed`.
      ends: place behind the last query that sees each token [N, T], for segments that share prefixes; None takes
        each token's own segment.

    Returns:
      Hidden states after the final norm [N, T, D] in the compute dtype; multiply by `head_weights` for logits.

    Raises:
      ConfigError: unknown remat or attention implementation.
    """
    if remat != "none" and remat not in _POLICIES:
        raise ConfigError(f"remat={remat!r}: must be one of none, {', '.join(_POLICIES)}")
    dtype = jnp.dtype(compute_dtype or config.dtype)
    run_attention = attend_packed(
        segment_ends(segment_ids) if ends is None else ends,
        implementation=attention_implementation,
        dtype=dtype,
        tree=ends is not None,
    )
    rope = rope_table(config, positions)
    graphdef = _block_graphdef(config)

    def attend(q, k, v, cache):
        return run_attention(q, k, v), cache

    def body(x, layer):
        return nnx.merge(graphdef, layer)(x, rope, attend, None)[0]

    if remat != "none":
        body = jax.checkpoint(body, policy=_POLICIES[remat], prevent_cse=unroll)
    x = _embed(config, params, ids, compute_dtype)
    if unroll:
        for layer in _split_layers(params["layers"]):
            x = body(x, layer)
    else:
        x, _ = jax.lax.scan(lambda carry, layer: (body(carry, layer), None), x, params["layers"])
    return _final_norm(config, params, x)


def forward_cached(
    config: ModelConfig,
    params: Params,
    ids: Int[Array, "b c"],
    positions: Int[Array, "b c"],
    cache: Any,
    attend: Callable[[int, jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]],
    *,
    compute_dtype: Any = None,
) -> tuple[Float[Array, "b c d"], Any]:
    """Runs the decoder on new tokens only; the caller keeps keys and values in a layout of its own.

    Args:
      config: the model.
      params: nested dict, stacked or from `unstack_layers` (faster).
      ids: new token ids [B, C].
      positions: their rotary positions [B, C].
      cache: anything; handed through.
      attend: `attend(layer_index, q [B,C,H,K], k [B,C,G,K], v [B,C,G,K], cache) -> (out [B,C,H,K], cache)`; q and k
        are already normed and rotated. Called once a layer, in order.
      compute_dtype: overrides `config.dtype`.

    Returns:
      Hidden states after the final norm [B, C, D], and the cache after the last layer.
    """
    rope = rope_table(config, positions)
    graphdef = _block_graphdef(config)
    layers = params["layers"]
    x = _embed(config, params, ids, compute_dtype)
    for index, layer in enumerate(layers if isinstance(layers, tuple | list) else _split_layers(layers)):
        x, cache = nnx.merge(graphdef, layer)(x, rope, functools.partial(attend, index), cache)
    return _final_norm(config, params, x), cache


@functools.lru_cache(maxsize=32)
def _block_graphdef(config: ModelConfig) -> nnx.GraphDef:
    """Returns the structure of one layer, into which a layer's arrays are merged."""
    return nnx.split(nnx.eval_shape(lambda: Block(config, nnx.Rngs(0))))[0]


def _split_layers(layers: Params) -> tuple[Params, ...]:
    """Cuts the layer axis. A split, not L slices: its gradient is one concatenation and not L padded sums."""
    leaves, structure = jax.tree.flatten(layers)
    # Host arrays stay on the host: a program would run on the mesh that is set, with all of its processes.
    columns = [list(leaf) if isinstance(leaf, np.ndarray) else jnp.unstack(leaf) for leaf in leaves]
    return tuple(jax.tree.unflatten(structure, list(row)) for row in zip(*columns, strict=True))


def _embed(config: ModelConfig, params: Params, ids: jax.Array, compute_dtype: Any) -> jax.Array:
    dtype = jnp.dtype(compute_dtype or config.dtype)
    # Whole along D: looked up in a table cut along D, rows would have to change hands token by token.
    table = constrain(params["embed"], "vocab", "act_embed")
    return constrain(table[ids].astype(dtype), "rows", "length", "act_embed")


def _final_norm(config: ModelConfig, params: Params, x: jax.Array) -> jax.Array:
    graphdef = nnx.split(nnx.eval_shape(lambda: Norm(config.hidden_size, config.rms_eps)))[0]
    return nnx.merge(graphdef, params["final_norm"])(x)
