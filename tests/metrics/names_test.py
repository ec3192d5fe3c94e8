"""One table of metric names, and the page made from it."""

import pathlib

import pytest

from sage_jax.errors import ConfigError
from sage_jax.metrics import METRICS, check_names
from sage_jax.metrics.names import markdown
from sage_jax.types import Status

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_page_is_what_the_table_says():
    assert (DOCS / "metrics.md").read_text() == markdown(), "run: python -m sage_jax.metrics > docs/metrics.md"


def test_names_are_unique_and_told():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(metric.unit and metric.meaning for metric in METRICS)


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
