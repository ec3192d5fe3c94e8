"""The policy of a run: its folder, mesh, adapters and forward pass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from typing import Any

import jax

from sage_jax.errors import ConfigError
from sage_jax.models import hf, lora
from sage_jax.models.config import LoraConfig, ModelConfig
from sage_jax.models.presets import preset
from sage_jax.models.sharding import make_mesh, param_shardings, parse_mesh
from sage_jax.models.transformer import abstract_params, forward, logical_axes
from sage_jax.seeding import jax_key
from sage_jax.settings import RunSettings

_SMOLLM2 = "models/SmolLM2-135M-Instruct"


def policy_mesh(settings: RunSettings) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which the policy's mesh is set; without one it changes nothing.

    Raises:
      ConfigError: the mesh does not fit the devices, or several processes have none.
    """
    if not settings.policy.mesh:
        if jax.process_count() > 1:
            raise ConfigError(
                f"mesh='' in a run of {jax.process_count()} processes: give a mesh of all {jax.device_count()} devices"
            )
        return contextlib.nullcontext()
    return jax.set_mesh(make_mesh(**{"data": 1, **parse_mesh(settings.policy.mesh)}))


def frozen_policy(settings: RunSettings) -> RunSettings:
    """Returns the settings with the policy that plays Skill-R1's tasks and is not trained in place of the policy."""
    model = settings.task.task_policy or settings.policy.model
    return dataclasses.replace(settings, policy=dataclasses.replace(settings.policy, model=model))


def load_policy(settings: RunSettings) -> tuple[ModelConfig, Any]:
    """Loads the policy's folder, onto the mesh that is set.

    Raises:
      ConfigError: the folder is missing.
    """
    folder = pathlib.Path(settings.policy.model)
    if not (folder / "config.json").is_file():
        how = (
            "`make base-model` makes assets/base, `make editor-model` assets/editor, and any "
            "Qwen2/2.5, Qwen3, Llama or SmolLM2 folder fits"
        )
        if folder == pathlib.Path(_SMOLLM2):
            how = f"`third_party/smollm2/get.sh` makes {_SMOLLM2}"
        raise ConfigError(
            f"model={settings.policy.model!r}: no such model folder (it needs config.json, safetensors and tokenizer); "
            + how
        )
    shardings = None
    if settings.policy.mesh:
        model = hf.read_config(folder)
        shardings = param_shardings(logical_axes(model), abstract_params(model), jax.sharding.get_mesh())
    return hf.load(folder, compute_dtype=settings.policy.compute_dtype, shardings=shardings)


def with_adapters(settings: RunSettings, model: ModelConfig) -> ModelConfig:
    """Returns the model with the run's adapters, or as it is when the run has none."""
    own = settings.lora
    if not own.lora_rank:
        return model
    return dataclasses.replace(model, lora=LoraConfig(own.lora_rank, own.lora_alpha, own.lora_targets))


def fresh_adapters(settings: RunSettings, model: ModelConfig) -> Any:
    """Returns the adapters a run starts with, on the mesh that is set."""
    adapters = lora.init_adapters(model, jax_key(settings.seed, "lora"))
    if not settings.policy.mesh:
        return adapters
    layout = param_shardings(logical_axes(model), abstract_params(model), jax.sharding.get_mesh())
    return jax.device_put(adapters, lora.split(layout)[0])


def model_config(settings: RunSettings) -> ModelConfig:
    """Returns the sizes of the policy, from its folder or else from `model_preset`; needs no weights.

    Raises:
      ConfigError: neither tells the sizes.
    """
    folder, name = pathlib.Path(settings.policy.model), settings.policy.model_preset
    if (folder / "config.json").is_file():
        return hf.read_config(folder, dtype=settings.policy.compute_dtype)
    if name:
        return preset(name, dtype=settings.policy.compute_dtype)
    raise ConfigError(f"model={settings.policy.model!r} is no folder; set model_preset to a published model")


def policy_forward(settings: RunSettings, model: ModelConfig):
    """Returns forward(params, ids, positions, segment_ids) with the run's options."""
    policy = settings.policy
    return functools.partial(
        forward,
        model,
        remat=policy.remat,
        unroll=policy.unroll,
        attention_implementation=policy.attention,
    )
