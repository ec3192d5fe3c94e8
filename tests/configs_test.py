"""Every config file loads at every scale, says what it is, and fits the settings."""

import pathlib

import pytest

from sage_jax import config
from sage_jax.settings import RunSettings
from sage_jax.training import modes

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted(
    path
    for path in (ROOT / "configs").glob("*.py")
    if "def get_config" in path.read_text()
    # Those have tests of their own.
    and not path.stem.startswith("skillr1")
    and not path.stem.endswith("appworld")
    and path.stem != "matrix"
)
SCALES = ("local", "smoke", "smollm2", "paper")
CASES = [pytest.param(path, scale, id=f"{path.stem}-{scale}") for path in FILES for scale in SCALES]

BENCHMARKS = ("alfworld", "webshop")


def load(path: pathlib.Path, arg: str = "") -> RunSettings:
    return config.to_dataclass(config.load_config(f"{path}:{arg}" if arg else str(path)), RunSettings)


def test_there_is_a_method_and_its_baseline():
    pairs = {f"{method}_{benchmark}" for method in ("skillmaster", "grpo") for benchmark in BENCHMARKS}
    assert pairs <= {path.stem for path in FILES}


@pytest.mark.parametrize(("path", "scale"), CASES)
def test_each_scale_loads(path, scale):
    settings = load(path, scale)
    assert settings.scale == scale
    assert settings.name == pathlib.Path(settings.run_dir).name
    assert settings.rl.method == path.stem.partition("_")[0]
    assert load(path, f"{scale},seed=7,lr=0.5").optimizer.lr == 0.5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_local_is_the_default_and_no_two_scales_share_a_folder(path):
    assert load(path) == load(path, "local")
    assert len({load(path, scale).run_dir for scale in SCALES}) == len(SCALES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_docstring_tells_command_and_expected_value(path):
    text = path.read_text().split('"""')[1]
    assert f"--config=configs/{path.name}:smoke" in text
    assert f"--config=configs/{path.name}:paper --mode=check" in text
    assert "%" in text
    assert "arXiv" in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_papers_scale_is_checked_without_weights(path, capsys):
    total = modes.check(load(path, "paper"))
    printed = capsys.readouterr().out
    assert "7,615,616,512 parameters" in printed  # Qwen2.5-7B
    assert "8 tasks x 8 rollouts = 64 episodes" in printed
    assert 15.75 * 2**30 > total > 9.5 * 2**30  # one chip of 32, of v5e
    assert ("at most 512 episodes" in printed) == (path.stem.startswith("skillmaster"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_scale_of_the_small_instruct_model_is_checked_without_weights(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where no model folder is
    total = modes.check(load(path, "smollm2"))
    assert "134,515,008 parameters" in capsys.readouterr().out  # SmolLM2-135M
    assert 8 * 2**30 > total > 4 * 134_515_008 * 4  # weights, gradients, two moments, and less than a laptop has


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("scale", SCALES)
def test_the_baseline_differs_in_its_skills_only(scale, benchmark):
    ours, baseline = (
        config.flatten(load(ROOT / "configs" / f"{name}_{benchmark}.py", scale)) for name in ("skillmaster", "grpo")
    )
    differing = {key for key in ours if ours[key] != baseline[key]}
    named = {"name", "run_dir", "method"}
    skills = {"retrieval", "mutate", "utility", "probes", "probe_topic"}
    skills |= {"review_tokens", "retrieval_top_k", "sign_weight", "gamma", "accept"}
    budget = {"rounds"}  # probe episodes count, so the baseline may have more rounds
    assert named < differing <= named | skills | budget
    assert (baseline["retrieval"], baseline["mutate"], baseline["utility"]) == ("none", "never", False)
