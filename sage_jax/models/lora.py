"""Low-rank adapters: made beside a frozen base, trained alone, merged into it, kept as PEFT adapter folders.

    model = dataclasses.replace(base_model, lora=LoraConfig(rank=8))
    adapters = init_adapters(model, key)                   # the only arrays that are trained and checkpointed
    hidden = forward(model, join(adapters, base), ...)
    weights = merge(model, join(adapters, base))           # plain parameters of base_model, for an engine or a folder

A base without adapters and one with fresh adapters compute the same: B starts at zero.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.models.config import ModelConfig
from sage_jax.models.hf_store import read_json, replace_file, write_json
from sage_jax.models.transformer import Params, abstract_params

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_NAMES = ("lora_a", "lora_b")
_GROUPS = {"q": "attn", "k": "attn", "v": "attn", "o": "attn", "gate": "mlp", "up": "mlp", "down": "mlp"}
_MODULES = {"attn": "self_attn", "mlp": "mlp"}


def init_adapters(model: ModelConfig, key: jax.Array) -> Params:
    """Returns fresh adapters, A uniform in +-1 / sqrt(inputs) and B zero, without making the base.

    Raises:
      ConfigError: the model has none.
    """
    targets = _require(model).targets
    shapes = abstract_params(model)["layers"]
    adapters: Params = {}
    for number, target in enumerate(targets):
        leaf = shapes[_GROUPS[target]][target]
        a, b = (leaf[name].shape for name in _NAMES)
        bound = float(np.prod(a[1:-1])) ** -0.5
        drawn = jax.random.uniform(jax.random.fold_in(key, number), a, jnp.float32, -bound, bound)
        adapters.setdefault(_GROUPS[target], {})[target] = {"lora_a": drawn, "lora_b": jnp.zeros(b, jnp.float32)}
    return {"layers": adapters}


def join(adapters: Params, base: Params) -> Params:
    """Returns one tree of both; no array is copied."""
    joined = dict(base)
    for key, value in adapters.items():
        joined[key] = join(value, base.get(key, {})) if isinstance(value, dict) else value
    return joined


def split(params: Params) -> tuple[Params, Params]:
    """Returns (adapters, base) of a joined tree."""
    adapters: Params = {}
    base: Params = {}
    for key, value in params.items():
        if isinstance(value, dict):
            inner, rest = split(value)
            adapters |= {key: inner} if inner else {}
            base |= {key: rest} if rest else {}
        else:
            (adapters if key in _NAMES else base)[key] = value
    return adapters, base


def merge(model: ModelConfig, params: Params) -> Params:
    """Returns the base with each target's kernel W + (alpha / rank) A B; arrays without adapter are handed through."""
    lora = _require(model)
    adapters, base = split(params)
    layers = dict(base["layers"])
    for group, targets in adapters["layers"].items():
        layers[group] = dict(layers[group])
        for target, leaf in targets.items():
            kernel = layers[group][target]["kernel"]
            a, b = leaf["lora_a"], leaf["lora_b"]
            # Over the layer axis and the rank; the rest of A and of B is the kernel's own shape.
            change = jax.vmap(lambda a, b: jnp.tensordot(a, b, axes=1))(a, b) * lora.scale
            layers[group][target] = layers[group][target] | {"kernel": kernel + change.astype(kernel.dtype)}
    return {**base, "layers": layers}


def save_adapter(
    folder: str | os.PathLike[str], model: ModelConfig, adapters: Params, *, base: str | os.PathLike[str] = ""
) -> None:
    """Writes a folder that PEFT, SGLang and vLLM read as a LoRA adapter.

    Args:
      folder: made when missing.
      model: with `lora`.
      adapters: from `init_adapters` or `split`.
      base: name or folder of the base model, for `base_model_name_or_path`.
    """
    folder, lora = Path(folder), _require(model)
    tensors = {}
    for target in lora.targets:
        leaf = jax.device_get(adapters["layers"][_GROUPS[target]][target])
        for layer in range(model.num_layers):
            name = f"base_model.model.model.layers.{layer}.{_MODULES[_GROUPS[target]]}.{target}_proj"
            # Stored as torch's linear layers are: [outputs, inputs].
            a, b = leaf["lora_a"][layer].reshape(-1, lora.rank).T, leaf["lora_b"][layer].reshape(lora.rank, -1).T
            tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = map(np.ascontiguousarray, (a, b))
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / WEIGHTS_FILE, lambda path: safetensors.numpy.save_file(tensors, path, {"format": "pt"}))
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": os.fspath(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [f"{target}_proj" for target in lora.targets],
        "inference_mode": True,
    }
    write_json(folder / CONFIG_FILE, values)


def load_adapter(folder: str | os.PathLike[str], model: ModelConfig) -> Params:
    """Reads adapters that `save_adapter` or PEFT wrote for the same rank, scale and targets.

    Raises:
      CheckpointError: a file is missing or a tensor has another name or shape; names it.
      ConfigError: rank, alpha or targets differ from the model's; names both.
    """
    folder, lora = Path(folder), _require(model)
    values = read_json(folder / CONFIG_FILE)
    wanted = {"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": sorted(f"{t}_proj" for t in lora.targets)}
    found = {key: values.get(key) for key in wanted}
    found["target_modules"] = sorted(found["target_modules"] or ())
    if found != wanted:
        raise ConfigError(f"{folder / CONFIG_FILE} has {json.dumps(found)}, the model {json.dumps(wanted)}")
    path = folder / WEIGHTS_FILE
    try:
        tensors = safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    shapes = abstract_params(model)["layers"]
    adapters: Params = {}
    for target in lora.targets:
        group = _GROUPS[target]
        pieces: dict[str, list[np.ndarray]] = {name: [] for name in _NAMES}
        for layer in range(model.num_layers):
            for name, part in zip(_NAMES, ("lora_A", "lora_B"), strict=True):
                key = f"base_model.model.model.layers.{layer}.{_MODULES[group]}.{target}_proj.{part}.weight"
                pieces[name].append(_stored(tensors, key, shapes[group][target][name].shape[1:], part, path))
        stacked: dict[str, Any] = {name: jnp.asarray(np.stack(parts)) for name, parts in pieces.items()}
        adapters.setdefault(group, {})[target] = stacked
    return {"layers": adapters}


def _stored(tensors: dict[str, np.ndarray], key: str, shape: tuple[int, ...], part: str, path: Path) -> np.ndarray:
    """Returns one layer's A or B in our layout."""
    rows, columns = (shape[-1], int(np.prod(shape[:-1]))) if part == "lora_A" else (int(np.prod(shape[1:])), shape[0])
    if key not in tensors or tensors[key].shape != (rows, columns):
        found = "missing" if key not in tensors else f"of shape {tensors[key].shape}"
        raise CheckpointError(f"{path}: tensor {key} is {found}; the model makes it {(rows, columns)}")
    return tensors[key].T.reshape(shape)


def _require(model: ModelConfig):
    if model.lora is None:
        raise ConfigError("lora_rank=0: the model has no adapters; set lora_rank")
    return model.lora
