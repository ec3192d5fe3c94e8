"""The shared flags."""

import importlib
import subprocess
import sys

import pytest

from launch import command_line
from sage_jax.errors import ConfigError

CONFIG = "--config=configs/skillmaster_alfworld.py:smoke"


def parse(*argv):
    return command_line.parser("launch.x", "text").parse_args(list(argv))


def test_a_config_alone_is_one_job_in_a_folder_that_no_run_uses():
    (job,) = command_line.jobs(parse(CONFIG))
    assert job.run_dir == "runs/sweeps/skillmaster_alfworld_smoke/base/seed_0"
    assert job.argv[0] == sys.executable


def test_seeds_variants_and_environment_come_from_flags(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def get_sweep():\n"
        "    variants = {'a': {}, 'b': dict(gamma=0.5)}\n"
        "    return dict(config='configs/skillmaster_alfworld.py', seeds=(0, 1), variants=variants)\n"
    )
    jobs = command_line.jobs(parse(f"--sweep={path}:smoke", "--seeds=5", "--only=b", "--env=A=x=y", "--out=o/"))
    assert [(job.variant, job.seed, job.run_dir) for job in jobs] == [("b", 5, "o/b/seed_5")]
    assert jobs[0].env == {"A": "x=y"}
    assert "--config=configs/skillmaster_alfworld.py:smoke" in jobs[0].argv
    assert "--config.gamma=0.5" in jobs[0].argv
    assert len(command_line.jobs(parse(f"--sweep={path}:smoke"))) == 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((CONFIG, "--env=A"), "--env 'A' is no KEY=VALUE"),
        ((CONFIG, "--seeds=a"), "--seeds 'a'"),
        ((CONFIG, "--only=other"), "no variant 'other'"),
        (("--sweep=configs/sweeps/skillmaster_alfworld.py", "--grid=gamma=1"), "--grid belongs to --config"),
    ],
)
def test_wrong_flags_are_refused(argv, message):
    with pytest.raises(ConfigError) as caught:
        command_line.jobs(parse(*argv))
    assert message in str(caught.value)


def test_an_error_is_one_line_and_exit_status_2():
    command = [sys.executable, "-m", "launch.local", CONFIG, "--grid=gama=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ConfigError: variant 'gama=1': unknown config key 'gama'. Did you mean 'gamma'?")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["launch.local", "launch.slurm", "launch.gke", "launch.xm_local", "experiments.ablate"]
)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(name).main(["--help"])
    assert caught.value.code == 0
    output = capsys.readouterr().out
    assert f"python -m {name}" in output
    assert "--dry_run" in output
