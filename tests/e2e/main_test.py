"""The main program as a real process, on the real environments."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from sage_jax.errors import CheckpointError
from sage_jax.metrics import read_metrics, read_rows
from sage_jax.training import loop

ROOT = pathlib.Path(__file__).parents[2]


def test_a_run_prints_its_table_and_leaves_everything_that_tells_of_it(finished):
    folder, printed = finished
    for word in ("before, without skills", "after, with skills", "pick_and_place_simple", "report:"):
        assert word in printed
    for name in ("config.json", "starts.jsonl", "metrics.jsonl", "bank.json", "skills.json", "report.html"):
        assert (folder / name).stat().st_size > 0
    assert sorted(path.name for path in (folder / "rounds").iterdir()) == ["0001.jsonl", "0002.jsonl"]
    lines = read_metrics(folder)
    assert [line["step"] for line in lines] == [0, 0, 1, 2, 2]
    assert [name for name in ("sft/loss", "reward/mean", "time/eval") if name in lines[2]] == ["reward/mean"]
    rows = read_rows(folder / "eval" / "after.json")
    assert {(row.split, row.retrieval) for row in rows} == {
        (split, shown) for split in ("valid_seen", "valid_unseen") for shown in (True, False)
    }


def test_an_unknown_key_is_refused_with_a_suggestion(program, tmp_path):
    printed = program.run(tmp_path, "--config.group_sise=3", expect=1)
    assert printed == "ConfigError: unknown config key 'group_sise'. Did you mean 'group_size'?\n"
    assert not (tmp_path / "config.json").exists()


@pytest.mark.slow
def test_the_export_of_a_run_is_evaluated_to_the_same_numbers(program, finished, tmp_path):
    folder, _ = finished
    shutil.copytree(folder, tmp_path / "run")
    assert "wrote" in program.run(tmp_path / "run", "--mode=export")
    exported = program.run(tmp_path / "again", "--mode=eval", "--tag=alone", model=tmp_path / "run" / "export")
    assert "alone, without skills" in exported
    after = read_rows(folder / "eval" / "after.json")
    assert read_rows(tmp_path / "again" / "eval" / "alone.json") == [row for row in after if not row.retrieval]


@pytest.mark.slow
def test_an_evaluation_is_the_same_with_1_8_and_32_episodes_at_a_time(program, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    for count in (1, 8, 32):  # on 16 slots
        program.run(folder, "--mode=eval", f"--tag=at_{count}", concurrency=count, eval_episodes=0)
    rows = [read_rows(folder / "eval" / f"at_{count}.json") for count in (1, 8, 32)]
    assert sum(row.n for row in rows[0] if row.family == "all") == 24  # 12 games, with and without skills
    assert rows[0] == rows[1] == rows[2]


def test_a_finished_run_ends_at_once_goes_on_with_free_keys_and_refuses_others(program, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)

    def names(run):
        return [(line["step"], sorted(line)) for line in read_metrics(run)]

    def train(**values):
        loop.train(program.settings(folder, **values))

    train()
    assert names(folder) == names(finished[0])
    assert len(json.loads((folder / "starts.jsonl").read_text().splitlines()[-1])["config_changed"]) == 1  # run_dir
    assert (folder / "eval" / "after.json").read_text() == (finished[0] / "eval" / "after.json").read_text()

    train(rounds=3, eval_every=2, eval_episodes=1)
    assert names(folder)[:-1] == names(finished[0])[:4] + names(folder)[4:6]
    assert [line["step"] for line in read_metrics(folder)] == [0, 0, 1, 2, 2, 3, 3]
    for tag, step in (("round_2", 2), ("after", 3)):
        assert {row.n for row in read_rows(folder / "eval" / f"{tag}.json")} == {1}
        assert json.loads((folder / "eval" / f"{tag}.stamp").read_text())["step"] == step

    config = (folder / "config.json").read_text()
    with pytest.raises(CheckpointError, match="lr was 0.001 and is 0.002"):
        train(lr=2e-3)
    assert (folder / "config.json").read_text() == config


@pytest.mark.slow
def test_the_baseline_runs_without_reviews(program, tmp_path):
    program.run(tmp_path, config="configs/grpo_alfworld.py", method="grpo", utility=False, retrieval="none")
    lines = read_metrics(tmp_path)
    assert not any(name.startswith(("review/", "utility/", "bank/")) for line in lines for name in line)
    assert json.loads((tmp_path / "bank.json").read_text())["log"] == []


@pytest.mark.slow
def test_a_whole_run_on_eight_devices_and_its_continuation(program, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    mesh = "--config.mesh=fsdp:4,tensor:2"  # its comma would end an argument behind the file's colon
    program.run(tmp_path, mesh, rounds=1)
    program.run(tmp_path, mesh, rounds=2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 0, 1, 2, 2]
    assert read_rows(tmp_path / "eval" / "after.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skillmaster_alfworld", "grpo_alfworld"])
def test_check_needs_no_weights(name):
    command = [sys.executable, "-m", "experiments.main", f"--config=configs/{name}.py:paper", "--mode=check"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "memory: learner" in printed
