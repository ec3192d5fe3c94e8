"""The matrix: every method is a config on every environment, and every cell runs."""

import itertools
import pathlib

import pytest

from configs import matrix
from sage_jax import config
from sage_jax.errors import ConfigError
from sage_jax.metrics import read_metrics, read_rows
from sage_jax.settings import RunSettings
from sage_jax.testing.tiny import SETTINGS
from sage_jax.training.loop import train

ROOT = pathlib.Path(__file__).parents[1]
CELLS = list(itertools.product(matrix.METHODS, matrix.ENVIRONMENTS))
# What a round of each method leaves in metrics.jsonl and no other method does.
MARKS = {"grpo": "reward/success", "skillmaster": "utility/edits", "sage": "chain/use_rate", "skillr1": "skill/written"}


def load(arg: str, **values) -> RunSettings:
    loaded = config.load_config(f"{ROOT / 'configs' / 'matrix.py'}:{arg}")
    with loaded.unlocked():
        loaded.update(values)
    return config.to_dataclass(loaded, RunSettings)


@pytest.mark.parametrize(("method", "env"), CELLS)
def test_every_cell_is_a_config_of_its_own(method, env):
    for scale in matrix.SCALES:
        settings = load(f"{scale},method={method},env={env},seed=3")
        benchmark = "appworld_lite" if env == "appworld" else env
        assert (settings.rl.method, settings.tasks.benchmark, settings.scale) == (method, benchmark, scale)
        assert settings.seed == 3
        assert settings.run_dir == f"runs/matrix/{settings.name}"
        assert settings.name == f"{method}_{env}" + ("_smoke" if scale == "smoke" else "")


@pytest.mark.parametrize("scale", matrix.SCALES)
@pytest.mark.parametrize(("method", "env"), matrix.PAPERS)
def test_a_cell_that_a_paper_has_is_the_papers_config(method, env, scale):
    cell = config.flatten(load(f"{scale},method={method},env={env}"))
    path = ROOT / "configs" / f"{method}_{env}.py"
    paper = config.flatten(config.to_dataclass(config.load_config(f"{path}:{scale}"), RunSettings))
    assert {key for key in paper if cell[key] != paper[key]} <= {"name", "run_dir"}


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("method=sagee", "expected one of grpo.*Did you mean 'sage'"),
        ("env=webshops", "expected one of alfworld.*Did you mean 'webshop'"),
        ("paper", "'paper' is no scale"),
        ("method=grpo,evn=gaia", "unknown key 'evn'.*'env'"),
    ],
)
def test_a_cell_that_is_not_there_is_refused(arg, message):
    with pytest.raises(ConfigError, match=message):
        matrix.get_config(arg)


def finished(settings: RunSettings) -> list[dict]:
    """Trains, and returns the metrics of the rounds."""
    folder = train(settings)
    rows = read_rows(folder / "eval" / "after.json")
    assert {row.split for row in rows} == set(settings.evaluation.eval_splits)
    assert all(row.failed == 0 for row in rows)
    return [line for line in read_metrics(folder) if MARKS[settings.rl.method] in line]


@pytest.mark.parametrize("method", [pytest.param("sage", marks=pytest.mark.slow), "skillr1"])
def test_cells_that_no_paper_has_run_with_a_tiny_model(method, tmp_path, tiny_folder, tiny_cache):
    sizes = {
        **SETTINGS,
        "rounds": 1,
        "sft_episodes": 0,
        "eval_splits": ("valid_seen",),
        "skill_tokens": 8,
        "games_train": 3,
    }
    places = {"run_dir": str(tmp_path), "model": str(tiny_folder), "cache": str(tiny_cache)}
    (line,) = finished(load(f"smoke,method={method},env=alfworld", **sizes, **places))
    if method == "sage":
        assert line["groups/total"] > 0
        assert 0 <= line["chain/use_rate"] <= 1
    else:
        assert line["skill/written"] == 2 * 2 * 2  # tasks, generations, siblings
        assert line["task_llm/tokens"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute to a minute of CPU time each, which cores shared with others stretch
@pytest.mark.parametrize(("method", "env"), CELLS)
def test_every_cell_runs_at_smoke(method, env, tmp_path, tiny_cache, monkeypatch):
    monkeypatch.chdir(ROOT)  # models are named relative to the checkout
    settings = load(f"smoke,method={method},env={env}", run_dir=str(tmp_path), cache=str(tiny_cache))
    if not pathlib.Path(settings.policy.model).is_dir():
        pytest.skip(f"{settings.policy.model} is not there: docs/base_model.md tells how to make it")
    lines = finished(settings)
    assert len(lines) == 2
    for line in lines:
        assert line["status/ok"] + line.get("status/truncated", 0) > 0
        assert not any(line.get(f"status/{bad}") for bad in ("env_error", "engine_error", "timeout"))
    if method == "skillmaster":
        assert lines[-1]["review/turns"] > 0
