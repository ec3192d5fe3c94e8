"""XManager: recorded by its own mock where it is installed (an environment of its own)."""

import asyncio
import dataclasses
import json
import sys

import pytest

from launch import xm_local
from sage_jax.errors import ConfigError

CONFIG = "--config=configs/skillmaster_alfworld.py:smoke"


def test_without_xmanager_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xmanager", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[launch\]'"):
        xm_local.main([CONFIG])


def test_dry_run_and_wrong_flags_need_no_xmanager(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "xmanager", None)
    assert xm_local.main([CONFIG, "--dry_run"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    with pytest.raises(ConfigError, match="parallel=0"):
        xm_local.main([CONFIG, "--parallel=0"])


def test_unfinished_jobs_become_work_units(make_job, tmp_path):
    xm_mock = pytest.importorskip("xmanager.xm_mock")
    jobs = [make_job(name, A="1") for name in ("a", "b", "c")]
    (tmp_path / "b/eval").mkdir(parents=True)
    (tmp_path / "b/eval/after.json").write_text("[1]")
    experiment = xm_mock.MockExperiment()
    assert asyncio.run(xm_local.run_and_close(experiment, jobs, parallel=1)) == []
    assert [job.name for job in experiment.launched_jobs] == ["a", "c"]
    assert experiment.launched_jobs[1].args.to_list(str) == list(jobs[2].argv[1:])
    assert dict(experiment.launched_jobs[1].env_vars) == {"A": "1"}
    assert type(experiment.launched_jobs[0].executor).__name__ == "Local"


def test_jobs_really_run_and_a_failed_one_is_named(make_job, tmp_path, monkeypatch):
    pytest.importorskip("xmanager.xm_local")
    monkeypatch.setenv("HOME", str(tmp_path))  # XManager keeps its database there
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    from xmanager import xm_local as backend

    good = make_job("good")
    odd = dataclasses.replace(make_job("odd", "import sys; sys.exit(sys.argv[1:] != ['$HOME; it\\'s'])"))
    odd = dataclasses.replace(odd, argv=(*odd.argv, "$HOME; it's"))
    bad = make_job("bad", "raise SystemExit(3)")
    for job in (good, odd, bad):
        (tmp_path / job.name).mkdir()
    experiment = backend.create_experiment(experiment_title="test")
    assert asyncio.run(xm_local.run_and_close(experiment, [good, bad, odd], parallel=1)) == ["bad"]
    assert (tmp_path / "good/eval/after.json").exists()
