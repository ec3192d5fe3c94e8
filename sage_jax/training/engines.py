"""Opens the engine that a run samples with: in this process, or a client of servers."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from sage_jax.errors import ConfigError
from sage_jax.models.config import ModelConfig
from sage_jax.rollout import Engine
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.file_follower import FileFollower
from sage_jax.rollout.http_client import HttpOptions, read_key
from sage_jax.rollout.layout import engine_mesh
from sage_jax.rollout.openai_llm import OpenAiLlm, OpenAiOptions
from sage_jax.rollout.programs import EngineConfig
from sage_jax.rollout.sglang import SglangEngine
from sage_jax.rollout.site_follower import SiteFollower
from sage_jax.rollout.task_llm import Budget, TaskLlm
from sage_jax.rollout.weights import WeightFolders
from sage_jax.setting_groups import EngineSettings
from sage_jax.settings import RunSettings

# Counters of `Engine.stats` that a round writes; an engine writes those that it keeps.
COUNTERS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "copied_tokens",
    "prefilled_tokens",
    "generated_tokens",
    "evictions",
    "retries",
    "stale_answers",
    "aborted",
)


def embedded_sizes(settings: EngineSettings, model: ModelConfig) -> tuple[ModelConfig, EngineConfig]:
    """Returns the policy in the dtype that the embedded engine computes in, and the engine's sizes."""
    model = dataclasses.replace(model, dtype=settings.engine_dtype or model.dtype)
    sizes = {"kv_dtype": settings.engine_kv_dtype}
    return model, EngineConfig.for_model(model, settings.slots, settings.max_length, **sizes)


def open_engine(settings: RunSettings, folder: pathlib.Path, model: ModelConfig, params: Any) -> Engine:
    """Returns an engine that has the given weights, as version 0; to be closed by the caller.

    Args:
      settings: of the run.
      folder: run folder; weights for servers pass through its folder `weights`, which they must see too unless
        they are sent as tensors.
      model: the policy.
      params: its parameters.

    Raises:
      ConfigError: a size or a key that does not fit.
      EngineError: a server does not take the weights.
    """
    sizes = settings.engine
    if sizes.engine == "embedded":
        model, config = embedded_sizes(sizes, model)
        engine = EmbeddedEngine(model, params, config, mesh=_own_mesh(settings))
        engine.warmup(choices=settings.agent.choices)
        return engine
    client = open_client(settings, model, WeightFolders(folder / "weights", model, source=settings.policy.model))
    try:
        _check_lengths(client, sizes.max_length)
        client.update_weights(params, 0)
    except BaseException:
        client.close()
        raise
    return client


def _own_mesh(settings: RunSettings) -> Mesh | None:
    """Returns the mesh of an engine that is cut over `tensor`, None for one on a single device."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty or mesh.shape["tensor"] == 1:
        return None
    own = engine_mesh(mesh)
    if any(device.process_index != jax.process_index() for device in own.devices.flat):
        raise ConfigError(
            f"mesh={settings.policy.mesh!r} with engine='embedded': its axis tensor crosses processes, and the first "
            f"one alone samples; make tensor at most {jax.local_device_count()}, or use engine='http'"
        )
    return own


def open_client(
    settings: RunSettings, model: ModelConfig, write_weights: Callable[[Any, int], pathlib.Path] | None = None
) -> SglangEngine:
    """Returns a client of the run's servers, to be closed by the caller; without `write_weights` it pushes none.

    Raises:
      ConfigError: there is no key where one was named.
    """
    sizes = settings.engine
    key = read_key("engine_api_key_env", sizes.engine_api_key_env) if sizes.engine_api_key_env else ""
    # Half an episode's time for a turn, so that one that hangs leaves time for another attempt.
    options = HttpOptions(
        sizes.engine_urls,
        sizes.engine_router,
        key,
        timeout_s=settings.agent.episode_timeout_s / 2,
        control_timeout_s=sizes.engine_control_timeout_s,
        retry_s=settings.agent.episode_timeout_s,
    )
    return SglangEngine(
        options,
        vocab_size=model.vocab_size,
        max_length=sizes.max_length,
        write_weights=write_weights,
        weight_transfer=sizes.engine_weight_transfer,
    )


def engine_metrics(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Returns what an engine did between two looks at its `stats`, as engine/<counter>, and its tokens a second.

    Nothing where it was asked for nothing: the clients of actors elsewhere count for themselves.
    """
    if before.get("requests") == after.get("requests"):
        return {}
    counts = {f"engine/{name}": after[name] - before[name] for name in COUNTERS if name in before and name in after}
    generated = counts.get("engine/generated_tokens")
    return counts if generated is None else counts | {"time/generated_per_second": generated / seconds}


def open_task_llm(settings: RunSettings, folder: pathlib.Path) -> TaskLlm:
    """Returns the frozen task LLM of Skill-R1; an endpoint's calls are logged to the run folder.

    Raises:
      ConfigError: the environment variable that should hold the key does not.
    """
    task = settings.task
    budget = Budget(task.task_calls, task.task_tokens, task.task_money)
    if task.task_llm == "follower":
        follower = SiteFollower if settings.tasks.benchmark == "webwalker" else FileFollower
        return follower(slip=task.task_slip, budget=budget)
    options = OpenAiOptions(
        url=task.task_url,
        model=task.task_model,
        key_env=task.task_key_env,
        retries=task.task_retries,
        concurrency=task.task_concurrency,
        price_in=task.task_price_in,
        price_out=task.task_price_out,
        cache=task.task_cache,
        log=str(folder / "task_llm.jsonl"),
    )
    return OpenAiLlm(options, budget)


def _check_lengths(client: SglangEngine, max_length: int) -> None:
    """Raises ConfigError when a server says that its contexts are shorter than the run's."""
    for info in client.server_info():
        found = info if isinstance(info, dict) else {}
        # SGLang tells its context length only where it was started with one, but always the longest prompt.
        context, prompt = found.get("context_length"), found.get("max_req_input_len")
        lengths = [*([context] if isinstance(context, int) else []), *([prompt + 1] if isinstance(prompt, int) else [])]
        if lengths and min(lengths) < max_length:
            raise ConfigError(
                f"max_length={max_length}: a server takes contexts of {min(lengths)} tokens; "
                "lower it, or serve longer ones"
            )
