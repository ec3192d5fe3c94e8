"""Starts the main program as its users do."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from sage_jax.config import load_config, to_dataclass
from sage_jax.settings import RunSettings
from sage_jax.testing.tiny import tiny_config

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = "configs/skillmaster_alfworld.py"


class Program:
    """`python -m experiments.main` with the tiny configuration."""

    def __init__(self, model, cache):
        self.model, self.cache = model, cache

    def spec(self, run_dir, *, config=CONFIG, **values) -> str:
        """Returns what follows --config=."""
        model = values.pop("model", self.model)
        keys = (f"{key}={value}" for key, value in tiny_config(run_dir, model, self.cache, **values).items())
        return f"{config}:smoke,{','.join(keys)}"

    def settings(self, run_dir, **values) -> RunSettings:
        return to_dataclass(load_config(f"{ROOT}/{self.spec(run_dir, **values)}"), RunSettings)

    def start(self, run_dir, *flags, **values) -> subprocess.Popen:
        command = [sys.executable, "-m", "experiments.main", f"--config={self.spec(run_dir, **values)}", *flags]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        run_dir.mkdir(parents=True, exist_ok=True)
        output = (run_dir / "output.txt").open("w")
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, run_dir, *flags, expect=0, **values) -> str:
        """Returns what the program printed once it has ended with the exit code expected."""
        process = self.start(run_dir, *flags, **values)
        try:
            process.wait(timeout=280)
        finally:
            kill(process)
        printed = (run_dir / "output.txt").read_text()
        assert process.returncode == expect, printed[-3000:]
        return printed

    def stop_when(self, run_dir, moment, *, by=signal.SIGKILL, **values) -> int:
        """Signals the program and its workers once `moment(seconds since the start)`; returns its exit code."""
        process, begin = self.start(run_dir, **values), time.monotonic()
        try:
            while process.poll() is None and not moment(time.monotonic() - begin):
                time.sleep(0.01)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, by)
            return process.wait(timeout=100)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)  # every thread's stack
            time.sleep(1)
            pytest.fail(f"did not end within 100 s:\n{(run_dir / 'output.txt').read_text()[-10000:]}")
        finally:
            kill(process)


def kill(process: subprocess.Popen) -> None:
    """Kills the program and its workers, as a machine that goes away does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def program(tiny_folder, tiny_cache):
    return Program(tiny_folder, tiny_cache)


@pytest.fixture(scope="session")
def finished(program, tmp_path_factory):
    """A tiny run that nobody disturbed: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("e2e") / "run"
    return folder, program.run(folder)
