"""Slurm array scripts: run by a real shell, with stand-ins for srun and sbatch."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest

from launch import slurm
from launch.plan import Resources
from sage_jax.errors import ConfigError, SageError

CONFIG = "--config=configs/skillmaster_alfworld.py:smoke"


@pytest.fixture
def path_with(tmp_path, monkeypatch):
    """Puts a program of that name and text at the front of PATH."""

    def put(name: str, text: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return put


def run_task(text: str, task: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": task}
    return subprocess.run(["bash"], input=text, env=environment, capture_output=True, text=True, check=False)


def test_each_task_runs_its_job_and_no_text_is_read_twice_by_the_shell(make_job, path_with, tmp_path):
    path_with("srun", 'exec "$@"')
    show = "import sys, os; print(sys.argv[1:], os.environ['A'], os.environ['PREPARED'])"
    jobs = [
        dataclasses.replace(job, argv=(sys.executable, "-c", show, job.name, "it's $HOME;", "a b"))
        for job in (make_job("x", A="1 2"), make_job("y", A="$(false) 'q'"))
    ]
    text = slurm.script(jobs, "out", name="s", cwd=str(tmp_path), setup=["export PREPARED=yes"])
    done = run_task(text, "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == """['y', "it's $HOME;", 'a b'] $(false) 'q' yes\n"""
    assert run_task(text, "2").returncode == 2


def test_a_finished_task_ends_at_once(make_job, path_with, tmp_path):
    path_with("srun", "echo started; exit 5")
    job = make_job("x")
    text = slurm.script([job], "out", name="s", cwd=str(tmp_path))
    assert run_task(text, "0").returncode == 5
    (tmp_path / "x/eval").mkdir(parents=True)
    (tmp_path / "x/eval/after.json").write_text("[1]")
    done = run_task(text, "0")
    assert (done.returncode, done.stdout) == (0, "")


def test_resources_and_options_stand_in_the_header(make_job):
    resources = Resources(cpus=4, memory_gb=32, hours=1.5, gpus=2)
    jobs = [dataclasses.replace(make_job(name), resources=resources) for name in "abc"]
    text = slurm.script(jobs, "out/", name="s", cwd="/c", parallel=2, options={"partition": "p", "account": ""})
    header = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --array=0-2%2" in header
    assert "#SBATCH --cpus-per-task=4" in header
    assert "#SBATCH --mem=32G" in header
    assert "#SBATCH --time=90" in header
    assert "#SBATCH --gres=gpu:2" in header
    assert "#SBATCH --partition=p" in header
    assert "#SBATCH --output=out/slurm/%A_%a.log" in header
    assert "account" not in text
    # sbatch reads its options only before the first command.
    assert text.splitlines()[1 : 1 + len(header)] == header


def test_what_a_header_cannot_hold_is_refused(make_job):
    job = make_job("a")
    other = dataclasses.replace(job, resources=Resources(gpus=1))
    tpu = dataclasses.replace(job, resources=Resources(tpu="tpu-v5p-slice"))
    for jobs in ([], [job, other], [tpu]):
        with pytest.raises(ConfigError, match="resource"):
            slurm.script(jobs, "out", name="s", cwd="/")
    with pytest.raises(ConfigError, match="white space"):
        slurm.script([job], "out", name="s", cwd="/", options={"partition": "a\n#SBATCH --uid=0"})
    with pytest.raises(ConfigError, match="no shell name"):
        slurm.script([dataclasses.replace(job, env={"A B": "1"})], "out", name="s", cwd="/")


def test_the_command_writes_the_script_and_submits_it(path_with, tmp_path, capsys):
    argv = [CONFIG, "--seeds=0,1", f"--out={tmp_path}/out", "--partition=p", "--submit"]
    path_with("sbatch", 'bash -n "$1" && echo "Submitted batch job 7"')
    assert slurm.main(argv) == 0
    assert "2 tasks\nSubmitted batch job 7\n" in capsys.readouterr().out
    assert (tmp_path / "out/slurm").is_dir()  # Slurm does not make the folder of its logs
    path_with("sbatch", "echo 'no such partition' >&2; exit 1")
    with pytest.raises(SageError, match="no such partition"):
        slurm.main(argv)


def test_without_sbatch_the_script_is_there_and_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SageError, match="sbatch is not on this machine"):
        slurm.main([CONFIG, f"--out={tmp_path}/out", "--submit"])
    assert pathlib.Path(tmp_path / "out/slurm.sh").is_file()


def test_dry_run_writes_nothing(tmp_path, capsys):
    assert slurm.main([CONFIG, f"--out={tmp_path}/out", "--gpus=1", "--dry_run"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["resources"]["gpus"] == 1
    assert not (tmp_path / "out").exists()
