"""Running jobs on this machine: real processes, which are tiny."""

import dataclasses
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from launch import local, plan
from sage_jax import config
from sage_jax.errors import ConfigError

CONFIG = "--config=configs/skillmaster_alfworld.py:smoke"


def statuses(outcomes):
    return {outcome.job.name: outcome.status for outcome in outcomes}


def test_jobs_run_in_order_each_with_its_log_and_environment(make_job):
    code = "import os; print('hello', os.environ['NAME'])\n"
    finish = "os.makedirs('eval'); open('eval/after.json', 'w').write('[1]')"
    jobs = [make_job(name, code + finish, NAME=name) for name in ("a", "b")]
    lines = []
    outcomes = local.run_jobs(jobs, describe=lambda outcome: f"({outcome.job.name})", write=lines.append)
    assert [(outcome.job.name, outcome.status) for outcome in outcomes] == [("a", "done"), ("b", "done")]
    assert local.exit_status(jobs, outcomes) == 0
    assert (pathlib.Path(jobs[1].run_dir) / local.LOG).read_text() == "hello b\n"
    assert [line.split(":")[0] for line in lines] == ["[1/2] a seed 0", "[2/2] b seed 0"]
    assert lines[1].endswith("(b)")


def test_finished_jobs_are_skipped_and_others_are_started_again(make_job):
    count = "open('starts', 'a').write('x')\n"
    finish = "import os; os.makedirs('eval'); open('eval/after.json', 'w').write('[1]')"
    jobs = [make_job("good", count + finish), make_job("bad", count + "raise SystemExit(3)")]
    first, second = (local.run_jobs(jobs, write=lambda line: None) for _ in range(2))
    assert statuses(first) == {"good": "done", "bad": "failed"}
    assert statuses(second) == {"good": "skipped", "bad": "failed"}
    starts = {job.name: (pathlib.Path(job.run_dir) / "starts").read_text() for job in jobs}
    assert starts == {"good": "x", "bad": "xx"}


def test_a_cut_result_is_no_result(make_job):
    job = make_job("a")
    path = pathlib.Path(job.run_dir) / local.RESULT
    path.parent.mkdir(parents=True)
    path.write_text('[{"split": ')
    assert not local.is_finished(job)
    path.write_text("[]")
    assert not local.is_finished(job)


def test_a_failure_is_reported_with_its_last_words_and_the_rest_go_on(make_job):
    jobs = [
        make_job("exits", "print('one'); raise SystemExit('last words')"),
        make_job("silent", "pass"),
        make_job("fine"),
    ]
    lines = []
    outcomes = local.run_jobs(jobs, write=lines.append)
    assert statuses(outcomes) == {"exits": "failed", "silent": "failed", "fine": "done"}
    assert "exit 1: last words (see " in lines[0]
    assert "exit 0 without eval/after.json: no output" in lines[1]
    assert local.exit_status(jobs, outcomes) == 1


def test_a_program_that_is_not_there_fails_alone(make_job):
    jobs = [dataclasses.replace(make_job("none"), argv=("/no/such/program",)), make_job("fine")]
    outcomes = local.run_jobs(jobs, write=lambda line: None)
    assert statuses(outcomes) == {"none": "failed", "fine": "done"}
    assert "/no/such/program" in outcomes[0].reason


def test_n_at_a_time_means_n_and_no_more(make_job, tmp_path):
    # Each job waits until it has seen a second one running, so the test ends only if two run together.
    code = (
        "import glob, os, time; open('alive', 'w').close(); seen = 0\n"
        "while seen < 2: seen = max(seen, len(glob.glob('../*/alive'))); time.sleep(0.01)\n"
        "open('seen', 'w').write(str(seen)); time.sleep(0.2); os.remove('alive')\n"
        "os.makedirs('eval'); open('eval/after.json', 'w').write('[1]')"
    )
    jobs = [make_job(name, code) for name in "abcd"]
    outcomes = local.run_jobs(jobs, parallel=2, write=lambda line: None)
    assert set(statuses(outcomes).values()) == {"done"}
    assert {path.read_text() for path in tmp_path.glob("*/seen")} == {"2"}
    with pytest.raises(ConfigError, match="parallel=0"):
        local.run_jobs(jobs, parallel=0)


def test_two_launchers_do_not_run_in_one_folder(make_job):
    job = make_job("a")
    folder = pathlib.Path(job.run_dir)
    folder.mkdir()
    with (folder / local.LOG).open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        (outcome,) = local.run_jobs([job], write=lambda line: None)
    assert (outcome.status, "another process runs in" in outcome.reason) == ("failed", True)
    assert statuses(local.run_jobs([job], write=lambda line: None)) == {"a": "done"}


def test_a_job_that_outlives_its_launcher_keeps_its_folder(fake_python, tmp_path):
    argv = [CONFIG, f"--python={fake_python}", f"--out={tmp_path}/out"]
    launcher = subprocess.Popen([sys.executable, "-m", "launch.local", *argv, "--env=SLEEP=1"])
    path = tmp_path / "out/base/seed_0/pids"
    pids = _wait_for(lambda: path.read_text().split() if path.exists() and path.read_text().count(" ") else None)
    try:
        launcher.kill()
        launcher.wait()
        assert local.main(argv) == 1
        assert not (tmp_path / "out/base/seed_0/eval").exists()
    finally:
        os.killpg(int(pids[0]), signal.SIGKILL)
    _wait_for(lambda: not any(_alive(int(pid)) for pid in pids) or None)
    assert local.main(argv) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_launcher_ends_the_job_and_what_it_started(fake_python, tmp_path, number):
    command = [sys.executable, "-m", "launch.local", CONFIG, "--seeds=0,1", f"--python={fake_python}"]
    launcher = subprocess.Popen(
        [*command, f"--out={tmp_path}/out", "--env=SLEEP=1"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs start with SIGINT ignored, and hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    path = tmp_path / "out/base/seed_0/pids"
    pids = _wait_for(lambda: path.read_text().split() if path.exists() and path.read_text().count(" ") else None)
    launcher.send_signal(number)
    output, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 130
    assert "stopping 1 running job(s)" in output
    assert "base seed 0: stopped" in output
    assert "seed 1" not in output
    _wait_for(lambda: not any(_alive(int(pid)) for pid in pids) or None)


def test_a_finished_run_of_another_configuration_is_refused(tmp_path):
    sweep = plan.make_sweep("s", CONFIG.removeprefix("--config="), {"v": {}})
    (job,) = plan.make_jobs(sweep, str(tmp_path))
    folder = pathlib.Path(job.run_dir)
    (folder / "eval").mkdir(parents=True)
    (folder / "eval/after.json").write_text("[1]")
    stored = json.loads(json.dumps(config.flatten(plan.resolve(job))))
    (folder / "config.json").write_text(json.dumps(stored | {"env_workers": 7, "name": "other"}))
    local.check_finished([job])
    for key in ("rounds", "gamma", "eval_episodes"):
        (folder / "config.json").write_text(json.dumps(stored | {key: 99}))
        with pytest.raises(ConfigError, match=f"finished run with {key}=99, the sweep asks for"):
            local.check_finished([job])
    (folder / "eval/after.json").unlink()
    local.check_finished([job])


def test_the_command_runs_a_grid_and_says_so_in_its_exit_status(fake_python, tmp_path, capsys):
    argv = [CONFIG, "--grid=gamma=0.1,0.2", f"--python={fake_python}", f"--out={tmp_path}/out"]
    assert local.main([*argv, "--env=FAIL_IF=gamma=0.2"]) == 1
    assert local.main(argv) == 0
    output = capsys.readouterr().out
    assert "gamma=0.2 seed 0: failed after" in output
    assert "it broke" in output
    assert "gamma=0.1 seed 0: skipped" in output


def test_dry_run_prints_the_plan_and_starts_nothing(tmp_path, capsys):
    assert local.main([CONFIG, "--seeds=3,4", f"--out={tmp_path}/out", "--dry_run"]) == 0
    assert [job["seed"] for job in json.loads(capsys.readouterr().out)] == [3, 4]
    assert not (tmp_path / "out").exists()


def _wait_for(get, seconds: float = 30.0):
    deadline = time.monotonic() + seconds
    while (value := get()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
