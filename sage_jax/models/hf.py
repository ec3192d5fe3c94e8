"""Reads and writes Hugging Face model folders: config.json, safetensors (one file or sharded), tokenizer files.

Tensors pass one at a time. Loading onto a mesh reads each device's own piece of one stored tensor after the other, so
that the host never holds more; without a mesh it holds one stacked parameter. Saving holds one shard. A linear layer
is stored as [out, in] there and as [in, out...] here, layers apart there and stacked here.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors.numpy
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.models.config import ModelConfig
from sage_jax.models.hf_config import from_hf, to_hf
from sage_jax.models.hf_store import INDEX, SINGLE, TensorFolder, drop_stale, read_json, replace_file, write_json
from sage_jax.models.transformer import Params, abstract_params

CARRIED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """Where one of our parameters lives: `name` with {} for the layer; `contract` leading axes are the input."""

    path: tuple[str, ...]
    name: str
    contract: int = 0

    @property
    def stacked(self) -> bool:
        return "{}" in self.name


class _Piece(NamedTuple):
    """One stored tensor: a parameter, or one layer of a stacked one; cut and brought to the host when written."""

    name: str
    leaf: _Leaf
    array: Any
    layer: int | None

    @property
    def size(self) -> int:
        return int(np.prod(self.array.shape if self.layer is None else self.array.shape[1:]))

    def export(self, dtype: np.dtype) -> np.ndarray:
        """Returns it in the stored layout and dtype."""
        piece = _to_host(self.array if self.layer is None else self.array[self.layer])
        stored = _stored_shape(piece.shape, self.leaf)
        piece = piece.reshape(stored[::-1]).T if self.leaf.contract else piece.reshape(stored)
        return np.ascontiguousarray(piece.astype(dtype))


_TABLE = [
    _Leaf(("embed",), "model.embed_tokens.weight"),
    *(
        _Leaf(("layers", "attn", part, kind), f"model.layers.{{}}.self_attn.{part}_proj.{name}", contract)
        for part in "qkv"
        for kind, name, contract in (("kernel", "weight", 1), ("bias", "bias", 0))
    ),
    _Leaf(("layers", "attn", "o", "kernel"), "model.layers.{}.self_attn.o_proj.weight", 2),
    _Leaf(("layers", "attn", "o", "bias"), "model.layers.{}.self_attn.o_proj.bias"),
    _Leaf(("layers", "attn", "q_norm", "scale"), "model.layers.{}.self_attn.q_norm.weight"),
    _Leaf(("layers", "attn", "k_norm", "scale"), "model.layers.{}.self_attn.k_norm.weight"),
    *(
        _Leaf(("layers", "mlp", part, "kernel"), f"model.layers.{{}}.mlp.{part}_proj.weight", 1)
        for part in ("gate", "up", "down")
    ),
    _Leaf(("layers", "attn_norm", "scale"), "model.layers.{}.input_layernorm.weight"),
    _Leaf(("layers", "mlp_norm", "scale"), "model.layers.{}.post_attention_layernorm.weight"),
    _Leaf(("final_norm", "scale"), "model.norm.weight"),
    _Leaf(("head",), "lm_head.weight"),
]


def read_config(folder: str | os.PathLike[str], *, dtype: str = "float32") -> ModelConfig:
    """Reads a folder's config.json; `dtype` is the compute dtype.

    Raises:
      CheckpointError: the file is missing or is not JSON.
      ConfigError: a family or setting that the decoder does not have.
    """
    path = Path(folder) / "config.json"
    return from_hf(read_json(path), str(path), dtype=dtype)


def load(
    folder: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    compute_dtype: str = "float32",
    shardings: Any = None,
) -> tuple[ModelConfig, Params]:
    """Loads a model folder.

    Args:
      folder: has config.json and model.safetensors, or model.safetensors.index.json and its files.
      dtype: dtype of the parameters, "float32" or "bfloat16".
      compute_dtype: `dtype` field of the returned config.
      shardings: a NamedSharding for every parameter (`sharding.param_shardings`); each process reads only what its
        own devices hold. None puts the parameters on the default device.

    Returns:
      The config and the nested dict of parameters.

    Raises:
      CheckpointError: names the file and tensor that is missing, damaged, of another shape, or not expected.
      ConfigError: a family or setting that the decoder does not have, or an unknown dtype.
    """
    folder, storage = Path(folder), _storage(dtype)
    config = read_config(folder, dtype=compute_dtype)
    params: Params = {}
    store = TensorFolder(folder)
    leaves = list(_leaves(config))
    _refuse_unknown(store, leaves)
    for leaf, shape in leaves:
        if shardings is None:
            value = jax.device_put(_read_whole(store, leaf, shape, storage))
        else:
            value = _read_onto(store, leaf, shape, storage, _find(shardings, leaf.path))
        _insert(params, leaf.path, value)
    return config, params


def stored_dtype(folder: str | os.PathLike[str]) -> str:
    """Returns the dtype in which a folder says it stores its weights; "float32" where `save` has none like it.

    Raises:
      CheckpointError: config.json is missing or is not JSON.
    """
    values = read_json(Path(folder) / "config.json")
    name = values.get("dtype") or values.get("torch_dtype")
    return name if name in _DTYPES else "float32"


def save(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    params: Params,
    *,
    dtype: str = "bfloat16",
    source: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a folder that transformers, SGLang and `load` read.

    In a run of several processes all of them call this, since all hold pieces; the first one writes.

    Args:
      folder: made when missing; files of the same names are replaced, config.json last.
      config: the model.
      params: stacked parameters.
      dtype: dtype of the stored weights, "float32" or "bfloat16".
      source: a folder whose tokenizer files, generation_config.json and other config keys are carried along.
      max_shard_bytes: a file holds at most this much, unless one tensor alone is larger; one shard is held in host
        memory.

    Raises:
      ConfigError: no family has the config's switches, or an unknown dtype.
      CheckpointError: a parameter is missing or has another shape than the config says.
    """
    folder, storage = Path(folder), _storage(dtype)
    carried = read_json(Path(source) / "config.json") if source is not None else None
    values = to_hf(config, dtype, carried)
    shards = _plan_shards(_pieces(config, params), storage.itemsize, max_shard_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {piece.name: piece.export(storage) for piece in shard}
        index.update(dict.fromkeys(tensors, file))
        total += sum(tensor.nbytes for tensor in tensors.values())
        if jax.process_index():
            continue
        replace_file(folder / file, lambda path, t=tensors: safetensors.numpy.save_file(t, path, {"format": "pt"}))
    if jax.process_index():
        return
    if len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": index})
    drop_stale(folder, set(index.values()))
    for name in CARRIED_FILES:
        if source is not None and (Path(source) / name).is_file() and Path(source).resolve() != folder.resolve():
            shutil.copyfile(Path(source) / name, folder / name)
    write_json(folder / "config.json", values)


def _storage(dtype: str) -> np.dtype:
    """Returns the NumPy dtype of a parameter dtype's name."""
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype={dtype!r}: must be one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _leaves(config: ModelConfig) -> Iterator[tuple[_Leaf, tuple[int, ...]]]:
    """Gives every parameter that the config has, with its shape here."""
    abstract = abstract_params(config)
    for leaf in _TABLE:
        node: Any = abstract
        for key in leaf.path:
            node = node.get(key) if isinstance(node, dict) else None
        if node is not None:
            yield leaf, node.shape


def _read_whole(store: TensorFolder, leaf: _Leaf, shape: tuple[int, ...], storage: np.dtype) -> np.ndarray:
    """Reads a parameter into host memory."""
    array = np.empty(shape, storage)
    views = (
        [(array[layer], leaf.name.format(layer)) for layer in range(shape[0])] if leaf.stacked else [(array, leaf.name)]
    )
    for view, name in views:
        tensor = store.read(name, _stored_shape(view.shape, leaf))
        view[...] = (tensor.T if leaf.contract else tensor).reshape(view.shape)
    return array


def _read_onto(
    store: TensorFolder, leaf: _Leaf, shape: tuple[int, ...], storage: np.dtype, at: NamedSharding
) -> jax.Array:
    """Reads a parameter onto its devices, one layer at a time."""
    if not leaf.stacked:
        return _read_piece(store, leaf.name, leaf, shape, storage, at)
    below = NamedSharding(at.mesh, PartitionSpec(*at.spec[1:]))
    whole = jax.jit(lambda: jnp.zeros(shape, storage), out_shardings=at)()
    put = jax.jit(jax.lax.dynamic_update_index_in_dim, static_argnums=3, donate_argnums=0, out_shardings=at)
    for layer in range(shape[0]):
        piece = _read_piece(store, leaf.name.format(layer), leaf, shape[1:], storage, below)
        # Waited for, so that the host does not read ahead of the devices and hold what they have not taken yet.
        whole = jax.block_until_ready(put(whole, piece, layer, 0))
    return whole


def _read_piece(
    store: TensorFolder, name: str, leaf: _Leaf, shape: tuple[int, ...], storage: np.dtype, at: NamedSharding
) -> jax.Array:
    """Reads a stored tensor onto devices; of the file only what this process's devices hold."""
    stored = _stored_shape(shape, leaf)

    def read(index: tuple[slice, ...]) -> np.ndarray:
        sizes = tuple(len(range(size)[part]) for size, part in zip(shape, index, strict=True))
        if leaf.contract:
            columns, rows = (
                _flat_slice(shape[part], index[part]) for part in (slice(0, leaf.contract), slice(leaf.contract, None))
            )
            tensor = store.read(name, stored, (rows, columns)).T
        else:
            tensor = store.read(name, stored, index if len(stored) == len(shape) else (_flat_slice(shape, index),))
        return tensor.reshape(sizes).astype(storage, order="C", copy=False)

    return jax.make_array_from_callback(shape, at, read)


def _flat_slice(sizes: Sequence[int], index: Sequence[slice]) -> slice:
    """Returns the range that a slice of the first of several axes is after they are laid flat."""
    inner = int(np.prod(sizes[1:]))
    if any(len(range(size)[part]) != size for size, part in zip(sizes[1:], index[1:], strict=True)):
        raise ConfigError(
            f"a layout cuts another axis than the first of {tuple(sizes)}, which are one axis in the file"
        )
    start, stop, _ = index[0].indices(sizes[0])
    return slice(start * inner, stop * inner)


def _to_host(array: Any) -> np.ndarray:
    """Brings an array to the host; where other processes hold pieces of it, all take part."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(jax.device_get(array))


def _find(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _stored_shape(shape: tuple[int, ...], leaf: _Leaf) -> tuple[int, ...]:
    """Returns the shape of a piece in the file."""
    if leaf.contract:
        return int(np.prod(shape[leaf.contract :])), int(np.prod(shape[: leaf.contract]))
    return shape if leaf.path[-1] in ("embed", "head") else (int(np.prod(shape)),)


def _pieces(config: ModelConfig, params: Params) -> Iterator[_Piece]:
    """Gives every tensor to store, layer by layer, after checking that all parameters are there."""
    leaves = []
    for leaf, shape in _leaves(config):
        node: Any = params
        for key in leaf.path:
            node = node.get(key) if isinstance(node, dict) else None
        if node is None or tuple(node.shape) != shape:
            found = "missing" if node is None else f"of shape {tuple(node.shape)}"
            raise CheckpointError(f"parameter {'.'.join(leaf.path)} is {found}; the config makes it {shape}")
        leaves.append((leaf, node))
    yield from (_Piece(leaf.name, leaf, node, None) for leaf, node in leaves if not leaf.stacked)
    for layer in range(config.num_layers):
        yield from (_Piece(leaf.name.format(layer), leaf, node, layer) for leaf, node in leaves if leaf.stacked)


def _plan_shards(pieces: Iterable[_Piece], itemsize: int, limit: int) -> list[list[_Piece]]:
    """Fills files in order up to `limit` bytes; a tensor larger than that gets a file of its own."""
    shards: list[list[_Piece]] = [[]]
    used = 0
    for piece in pieces:
        size = piece.size * itemsize
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(piece)
        used += size
    return shards


def _refuse_unknown(store: TensorFolder, leaves: list[tuple[_Leaf, tuple[int, ...]]]) -> None:
    """Raises when the folder has tensors that the config gives no place: the two do not belong together."""
    known = {"lm_head.weight"}  # tied models may store it again
    for leaf, shape in leaves:
        known.update(leaf.name.format(i) for i in range(shape[0])) if leaf.stacked else known.add(leaf.name)
    for name in store.names():
        if name not in known and not name.endswith("rotary_emb.inv_freq"):
            raise CheckpointError(f"{store.path(name)}: tensor {name} has no place in the model of config.json")


def _insert(params: Params, path: tuple[str, ...], value: Any) -> None:
    """Puts a value at a path of a nested dict, making the dicts on the way."""
    for key in path[:-1]:
        params = params.setdefault(key, {})
    params[path[-1]] = value
