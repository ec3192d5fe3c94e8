"""Settings that depend on each other, and which of them a continued run may change."""

import pathlib
import re

import pytest

from sage_jax import config
from sage_jax.errors import ConfigError
from sage_jax.settings import RunSettings

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"row_length": 512}, "row_length=512 is shorter than max_length=1024"),
        ({"eval_splits": ("valid_seen", "test")}, "eval_splits contains 'test'"),
        ({"engine": "http"}, "engine=http needs the address"),
        ({"engine_urls": ("http://a",)}, "engine=embedded has none"),
        ({"engine": "http", "engine_urls": ("http://a",), "choices": True}, "servers cannot sample among choices"),
        (
            {"engine": "http", "engine_urls": ("http://a",), "importance_kept": True},
            "importance_kept=True with engine='http'",
        ),
        (
            {"engine": "http", "engine_urls": ("http://a",), "engine_dtype": "bfloat16"},
            "engine_dtype='bfloat16' with engine='http'",
        ),
        (
            {"engine": "http", "engine_urls": ("http://a",), "engine_kv_dtype": "bfloat16"},
            "engine_kv_dtype='bfloat16' with engine='http'",
        ),
        ({"engine_kv_dtype": "float32"}, "'engine_kv_dtype' cannot be 'float32'"),
        ({"engine_dtype": "float16"}, "'engine_dtype' cannot be 'float16'"),
        ({"engine_router": "http://a"}, "engine='embedded' with engine_router='http://a'"),
        ({"engine_api_key_env": "KEY"}, "engine_api_key_env='KEY': both are of servers"),
        ({"straggler_factor": 0.5}, "straggler_factor=0.5: half of all episodes"),
        ({"running_turns": "correct"}, "running_turns='correct' with ahead=False"),
        ({"running_turns": "drop", "ahead": True}, "running_turns='drop' with importance_cap=0"),
        (
            {
                "running_turns": "drop",
                "ahead": True,
                "importance_cap": 2.0,
                "engine": "http",
                "engine_urls": ("http://a",),
            },
            "running_turns='drop' with engine='http'",
        ),
        ({"method": "ppo"}, "'grpo', 'sage', 'skillmaster'"),
        ({"group_size": 0}, "'group_size' cannot be 0"),
        ({"clip_low": 1.5}, "'clip_low' cannot be 1.5"),
        ({"probes": 0}, "'probes' cannot be 0"),
    ],
)
def test_a_value_that_does_not_fit_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        config.to_dataclass(values, RunSettings)


TASK_LLM = {
    "engine": "http",
    "engine_urls": ("http://127.0.0.1:30000", "http://other"),
    "method": "skillr1",
    "benchmark": "gaia",
    "eval_splits": ("test",),
    "sft_episodes": 0,
    "task_llm": "endpoint",
    "task_model": "m",
}


@pytest.mark.parametrize("url", ["http://127.0.0.1:30000/v1", "http://localhost:30000", "http://other:80/v1/"])
def test_a_task_llm_that_would_be_trained_along_is_refused(url):
    with pytest.raises(ConfigError, match=f"task_url='{url}' with engine_urls=.*serve it apart"):
        config.to_dataclass({**TASK_LLM, "task_url": url}, RunSettings)
    values = {
        "engine_urls": ("http://other",),
        "engine_router": "http://127.0.0.1:1",
        "task_url": "http://127.0.0.1:1/v1",
    }
    with pytest.raises(ConfigError, match="engine_router='http://127.0.0.1:1'"):
        config.to_dataclass({**TASK_LLM, **values}, RunSettings)


@pytest.mark.parametrize("url", ["http://127.0.0.1:30001/v1", "https://other/v1"])
def test_a_task_llm_on_another_server_is_fine(url):
    assert config.to_dataclass({**TASK_LLM, "task_url": url}, RunSettings).task.task_url == url


@pytest.mark.parametrize("url", ["http://other:3000O", "http://[::1"])
def test_an_address_that_cannot_be_read_is_named(url):
    with pytest.raises(ConfigError, match="3000O.*write it like|::1.*write it like"):
        config.to_dataclass({**TASK_LLM, "task_url": url}, RunSettings)


def test_a_step_wise_context_needs_no_row_for_a_whole_episode():
    assert config.to_dataclass({"context": "steps", "row_length": 512}, RunSettings).engine.row_length == 512


def test_what_decides_the_parameters_is_fixed():
    flat = config.flat_fields(RunSettings)
    free = {key for key, (field, _) in flat.items() if field.metadata["free"]}
    fixed = {"seed", "method", "lr", "group_size", "tasks_per_round", "gamma", "temperature", "max_length", "accept"}
    assert not fixed & free
    assert {"rounds", "run_dir", "eval_episodes", "save_every", "concurrency", "slots", "env_workers"} <= free


def test_every_setting_is_read_by_something():
    sources = [*(ROOT / "sage_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources if path.name not in ("settings.py", "setting_groups.py"))
    unread = [key for key in config.flat_fields(RunSettings) if not re.search(rf"\.{key}\b", text)]
    assert unread == []
