"""A whole small run of SAGE with its baseline: real model, real shells, every stage."""

import json
import pathlib

import pytest

from sage_jax import config
from sage_jax.errors import SandboxError
from sage_jax.metrics import read_rows
from sage_jax.sandbox import choose_backend
from sage_jax.settings import RunSettings
from sage_jax.training import baseline

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_ends_with_all_that_its_table_needs(tmp_path, monkeypatch):
    try:
        choose_backend()
    except SandboxError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(ROOT)
    loaded = config.load_config(f"configs/sage_appworld.py:smoke,run_dir={tmp_path / 'run'},rounds=1")
    settings = config.to_dataclass(loaded, RunSettings)
    folder = baseline.train(settings)
    rows = {tag: read_rows(folder / "eval" / f"{tag}.json") for tag in ("before", baseline.TAG, "after")}
    assert {row.retrieval for row in rows["after"]} == {True, False}
    assert {row.retrieval for row in rows[baseline.TAG]} == {False}
    for found in rows.values():
        whole = next(row for row in found if row.family == "all")
        assert (whole.n + whole.failed, whole.scenarios) == (3, 1)
    # Both start from the same weights: their evaluations without a library before training agree.
    plain = [row for row in rows["before"] if not row.retrieval]
    beside = read_rows(folder / baseline.TAG / "eval" / "before.json")
    assert plain == beside
    (line,) = [entry for entry in map(json.loads, (folder / "metrics.jsonl").open()) if "chain/use_rate" in entry]
    assert line["groups/total"] == 4  # two chains, two positions
