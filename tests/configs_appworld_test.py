"""The AppWorld configs load at every scale, fit the settings, and differ where they should."""

import pathlib

import pytest

from sage_jax import config
from sage_jax.errors import ConfigError
from sage_jax.settings import RunSettings
from sage_jax.training import modes
from sage_jax.training.baseline import baseline_settings

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
SCALES = ("local", "smoke", "paper")
METHODS = ("sage", "grpo")


def load(method: str, arg: str = "local") -> RunSettings:
    return config.to_dataclass(config.load_config(f"{CONFIGS / method}_appworld.py:{arg}"), RunSettings)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", METHODS)
def test_each_scale_loads(method, scale):
    settings = load(method, f"{scale},seed=7")
    assert (settings.scale, settings.rl.method, settings.seed) == (scale, method, 7)
    assert settings.name == pathlib.Path(settings.run_dir).name
    assert (
        f"configs/{method}_appworld.py:{scale}" in (CONFIGS / f"{method}_appworld.py").read_text() or scale == "local"
    )


@pytest.mark.parametrize("scale", SCALES)
def test_the_baseline_plays_as_many_episodes_and_differs_in_nothing_else(scale):
    ours, theirs = load("sage", scale), load("grpo", scale)
    assert theirs.rl.tasks_per_round == ours.rl.tasks_per_round * ours.sage.chain_length
    mine, other = config.flatten(ours), config.flatten(theirs)
    differing = {key for key in mine if mine[key] != other[key]}
    assert differing <= {"name", "run_dir", "method", "tasks_per_round", "baseline", "sft_data"}
    inside = config.flatten(baseline_settings(ours))
    assert {key for key in inside if inside[key] != other[key]} <= {"name", "run_dir", "sft_data"}


def test_the_papers_scale_is_checked_without_weights(capsys):
    total = modes.check(load("sage", "paper"))
    printed = capsys.readouterr().out
    assert "32,763,876,352 parameters" in printed  # Qwen2.5-32B
    assert "24 tasks x 8 rollouts" in printed
    assert total < 80 * 2**30  # a device of 32


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("local,context=steps", "use context='chat'"),
        ("local,benchmark=alfworld,eval_splits=valid_seen", "use appworld"),
        ("local,partial_reward=True", "app_judge='always'"),
        ("local,method=grpo", "drop one"),
        ("local,program_retrieval=telepathy", "program_retrieval"),
    ],
)
def test_what_does_not_fit_is_told(arg, message):
    with pytest.raises(ConfigError, match=message):
        load("sage", arg)
