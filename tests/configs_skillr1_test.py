"""The Skill-R1 configs load at every scale, say what they are, and are checked without weights."""

import pathlib

import pytest

from sage_jax import config
from sage_jax.errors import ConfigError
from sage_jax.settings import RunSettings
from sage_jax.training import modes

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
CASES = [(f"skillr1_{name}", scale) for name in ("gaia", "webwalker") for scale in ("local", "smoke", "paper")]


def load(name: str, arg: str = "", **overrides) -> RunSettings:
    loaded = config.load_config(f"{CONFIGS / name}.py:{arg}" if arg else str(CONFIGS / f"{name}.py"))
    with loaded.unlocked():
        loaded.update(overrides)
    return config.to_dataclass(loaded, RunSettings)


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_each_scale_loads(name, scale):
    settings = load(name, scale)
    assert (settings.scale, settings.rl.method, settings.rl.ratio_level) == (scale, "skillr1", "sequence")
    assert settings.name == pathlib.Path(settings.run_dir).name
    assert settings.tasks.benchmark == name.partition("_")[2]
    text = (CONFIGS / f"{name}.py").read_text().split('"""')[1]
    assert f"--config=configs/{name}.py:paper --mode=check" in text
    assert "arXiv" in text


@pytest.mark.parametrize("name", ["skillr1_webwalker", "skillr1_gaia"])
def test_the_papers_scale_is_checked_without_weights(name, capsys):
    assert modes.check(load(name, "paper")) > 2**30
    assert "4,022,468,096 parameters" in capsys.readouterr().out  # Qwen3-4B


def test_conditions_are_overrides():
    literal = load("skillr1_webwalker", "local,generation_mode=literal,siblings=1")
    assert literal.skillr1.generation_mode == "literal"
    assert load("skillr1_webwalker", "local,generations=1").skillr1.generations == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"generation_mode": "literal"}, "siblings=4.*use 1"),
        ({"task_llm": "endpoint"}, "an endpoint needs both"),
        ({"task_url": "http://x/v1", "task_model": "m"}, "the follower neither"),
        ({"benchmark": "alfworld", "eval_splits": ("valid_seen",)}, "use task_llm='policy'"),
        (
            {"task_llm": "policy", "engine": "http", "engine_urls": ("http://a",)},
            "servers hold the weights that are trained",
        ),
        ({"task_llm": "policy", "task_judge": True}, "an endpoint judges WebWalkerQA"),
        ({"source": "official"}, "set source='generated'"),
        ({"task_judge": True}, "an endpoint judges WebWalkerQA"),
        ({"sft_episodes": 3}, "an editor has no expert episodes"),
        ({"aggregation": "token_mean"}, "aggregation='sequence_mean'"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load("skillr1_webwalker", "local", **overrides)
