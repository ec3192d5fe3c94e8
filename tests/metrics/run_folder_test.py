"""What a run folder tells of its run."""

import json
import pathlib
import subprocess

import jax
import pytest

from sage_jax.metrics import git_revision, open_run_folder, read_jsonl, versions


def test_start_is_recorded(tmp_path):
    folder = open_run_folder(tmp_path / "a" / "run", {"seed": 1, "shape": (2, 3)}, argv=["python", "x", "--y"])
    assert json.loads((folder / "config.json").read_text()) == {"seed": 1, "shape": [2, 3]}
    (start,) = read_jsonl(folder / "starts.jsonl")
    assert start["command"] == ["python", "x", "--y"]
    assert start["versions"]["jax"] == jax.__version__
    assert start["config_changed"] == {}
    assert start["git"] == git_revision(pathlib.Path(__file__).parents[2])


def test_second_start_tells_what_changed(tmp_path):
    open_run_folder(tmp_path, {"seed": 1, "rounds": 5})
    open_run_folder(tmp_path, {"seed": 1, "rounds": 9})
    first, second = read_jsonl(tmp_path / "starts.jsonl")
    assert first["config_changed"] == {}
    assert second["config_changed"] == {"rounds": [5, 9]}
    assert json.loads((tmp_path / "config.json").read_text())["rounds"] == 9


def test_absent_packages_are_told(monkeypatch):
    monkeypatch.setattr("sage_jax.metrics.run_folder.PACKAGES", ("no-such-package-here", "numpy"))
    found = versions()
    assert found["no-such-package-here"] == "absent"
    assert found["numpy"][0].isdigit()


@pytest.fixture
def checkout(tmp_path):
    def git(*words):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    return tmp_path, git


def test_revision_is_what_git_says(checkout):
    folder, git = checkout
    expected = git("rev-parse", "HEAD")
    assert git_revision(folder) == expected
    git("pack-refs", "--all")
    assert git_revision(folder) == expected
    git("checkout", "-q", "--detach")
    assert git_revision(folder) == expected
    git("worktree", "add", "-q", str(folder / "tree"), "-b", "side")
    git("commit", "-q", "--allow-empty", "-m", "two")
    assert git_revision(folder / "tree") == expected
    assert git_revision(folder) == git("rev-parse", "HEAD") != expected


def test_outside_a_checkout_there_is_no_revision(tmp_path):
    assert git_revision(tmp_path) is None
