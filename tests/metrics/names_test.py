"""One table of metric names, and the page made from it."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from sage_jax.errors import ConfigError
from sage_jax.losses import policy_loss
from sage_jax.metrics import METRICS, EpisodeOutcome, check_names, summarise, write_rows
from sage_jax.metrics.names import READING, REVIEW_OUTCOMES, markdown
from sage_jax.rollout import embedded, sglang
from sage_jax.training.engines import engine_metrics
from sage_jax.types import Status

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_page_is_what_the_table_says():
    assert (DOCS / "metrics.md").read_text() == markdown(), "run: python -m sage_jax.metrics > docs/metrics.md"


def test_the_page_reads_a_run_as_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    run = pathlib.Path("runs/skillmaster_alfworld")
    write_rows(run / "eval/after.json", summarise([EpisodeOutcome("valid_seen", False, "cool", True, 4, 60)]))
    (run / "metrics.jsonl").write_text('{"step": 0, "sft/loss": 0.5}\n{"step": 1, "reward/success": 0.25}\n')
    values: dict = {}
    exec(READING, values)
    assert [line["step"] for line in values["rounds"]] == [1]
    assert pathlib.Path("success.png").stat().st_size > 1000
    assert capsys.readouterr().out == "1.0\n"


def test_names_are_unique_and_told():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(metric.unit and metric.meaning for metric in METRICS)


def dynamic_names():
    """Returns the names that code composes, from what it composes them of."""
    ones = jnp.ones(2)
    options = {"importance_cap": 1.0, "kl_coef": 1.0}
    inputs = dict.fromkeys(("old_logprobs", "ref_logprobs", "engine_logprobs", "entropy"), ones)
    _, aux = jax.eval_shape(lambda: policy_loss(ones, ones, ones, **inputs, **options))
    loop = (ROOT / "sage_jax" / "training" / "loop.py").read_text()
    stats = {**dict.fromkeys(embedded._COUNTERS + sglang._COUNTERS, 0.0), "evictions": 0.0}
    return {
        *(f"loss/{name}" for name in aux),
        *(f"time/{phase}" for phase in re.findall(r'clock.lap\("([a-z]+)"', loop)),
        *engine_metrics(stats, dict.fromkeys(stats, 1.0), 1.0),
        *(f"review/{outcome}" for outcome in REVIEW_OUTCOMES),
        *(f"status/{status.value}" for status in Status),
        *(f"advantage/{stream}_std" for stream in ("act", "review")),
    }


def test_every_name_is_written_by_some_code():
    folder = ROOT / "sage_jax"
    readers = {folder / "metrics" / "names.py", *(folder / "report").rglob("*.py")}
    paths = (path for path in folder.rglob("*.py") if path not in readers)
    text = "\n".join(path.read_text() for path in paths)
    listed = [metric.name for metric in METRICS if "<" not in metric.name]
    composed = dynamic_names()
    check_names(composed)
    assert [name for name in listed if f'"{name}"' not in text and name not in composed] == []


def test_every_status_has_a_count():
    check_names(f"status/{status.value}" for status in Status)


@pytest.mark.parametrize(
    "name",
    [
        "reward/mean",
        "lr",
        "eval/valid_unseen/all/with_skills/success",
        "eval/x/pick-two_v1.2/without_skills/wilson_low",
    ],
)
def test_known_names_pass(name):
    check_names([name])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("reward/meen", "'reward/mean'"),
        ("review/adde", "'review/added'"),
        ("eval/seen/all/with_skill/success", "skills/success"),
        ("eval/seen/all/with_skills/successes", "skills/success"),
        ("eval/a/b/c/with_skills/success", "skills/success"),
    ],
)
def test_unknown_names_are_refused_with_the_closest(name, hint):
    with pytest.raises(ConfigError, match="is not in sage_jax/metrics/names.py") as caught:
        check_names(["lr", name])
    assert repr(name) in str(caught.value)
    assert hint in str(caught.value)
