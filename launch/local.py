"""Runs a plan's jobs on this machine, one after another or N at a time.

    python -m launch.local --sweep=configs/sweeps/skillmaster_alfworld.py --parallel=1

The same command again skips the finished runs and continues the others. A run that fails is reported, the rest go on,
and the exit status says so at the end. Ctrl-C ends the running jobs, which continue from their last checkpoint later.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from launch import command_line
from launch.plan import Job, resolve
from sage_jax import config
from sage_jax.errors import ConfigError, SageError

LOG = "job.log"
RESULT = "eval/after.json"
# Keys that may change between starts of a run, yet make its result another one.
_FREE_BUT_TELLING = ("rounds", "model", "bank")
_POLL_S = 0.05
_GRACE_S = 20.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
      job: the job.
      status: "done", "skipped" (it was finished before), "failed" or "stopped" (by the user).
      seconds: wall time of this start.
      reason: why it failed.
    """

    job: Job
    status: str
    seconds: float = 0.0
    reason: str = ""


def is_finished(job: Job) -> bool:
    """Returns whether the run has written the evaluation that ends it."""
    try:
        return bool(json.loads((pathlib.Path(job.run_dir) / RESULT).read_text()))
    except (OSError, ValueError):
        return False


def check_finished(jobs: Sequence[Job]) -> None:
    """Refuses a finished run that another configuration left in the same folder.

    Raises:
      ConfigError: names the folder and the first key that differs.
    """
    for job in jobs:
        path = pathlib.Path(job.run_dir) / "config.json"
        if not is_finished(job) or not path.is_file():
            continue
        settings = resolve(job)
        now, then = config.flatten(settings), json.loads(path.read_text())
        keys = [*config.fingerprint(settings), *_FREE_BUT_TELLING, *(key for key in now if key.startswith("eval_"))]
        for key in keys:
            value = json.loads(json.dumps(now[key]))
            if then.get(key) != value:
                raise ConfigError(
                    f"{job.run_dir} holds a finished run with {key}={then.get(key)!r}, the sweep asks for {value!r}: "
                    "choose another --out or remove the folder"
                )


def run_jobs(
    jobs: Sequence[Job],
    *,
    parallel: int = 1,
    finished: Callable[[Job], bool] = is_finished,
    describe: Callable[[Outcome], str] = lambda outcome: "",
    write: Callable[[str], None] = print,
) -> list[Outcome]:
    """Runs the jobs in order and writes one line for each that ends.

    Args:
      jobs: what to run.
      parallel: how many at a time.
      finished: tells whether a job needs no (further) start.
      describe: gives the text behind the line of a job that is finished.
      write: receives the lines.

    Returns:
      One outcome per job that was looked at, in the order in which they ended. After Ctrl-C (or SIGTERM) the running
      ones are "stopped" and later ones are missing.
    """
    if parallel < 1:
        raise ConfigError(f"parallel={parallel}: an integer >= 1 would fit")
    waiting = list(jobs)
    running: list[_Running] = []
    outcomes: list[Outcome] = []

    def end(outcome: Outcome) -> None:
        outcomes.append(outcome)
        write(_line(outcome, len(outcomes), len(jobs), describe))

    with _sigterm_as_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    job = waiting.pop(0)
                    if finished(job):
                        end(Outcome(job, "skipped"))
                        continue
                    try:
                        running.append(_Running(job))
                    except (OSError, SageError) as error:
                        end(Outcome(job, "failed", reason=str(error)))
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    end(one.outcome(finished(one.job)))
                if running:
                    time.sleep(_POLL_S)
        except KeyboardInterrupt:
            write(f"stopping {len(running)} running job(s)")
        finally:
            _stop([one.process for one in running])
            for one in running:
                end(Outcome(one.job, "stopped", one.seconds()))
    return outcomes


def exit_status(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> int:
    """Returns 0 when every job is finished, 1 when some failed, 130 when the user stopped them."""
    if any(outcome.status == "stopped" for outcome in outcomes) or len(outcomes) < len(jobs):
        return 130
    return int(any(outcome.status == "failed" for outcome in outcomes))


class _Running:
    """A started job: its process, its log, the time it began."""

    def __init__(self, job: Job):
        folder = pathlib.Path(job.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.job, self.start = job, time.monotonic()
        with (folder / LOG).open("ab") as log:
            _lock(log, job)
            self.position = log.tell()
            # A session of its own: a job and the processes it starts end together, and Ctrl-C reaches it only once.
            self.process = subprocess.Popen(
                job.argv,
                env={"PYTHONUNBUFFERED": "1", **os.environ, **job.env},  # a log in order, and as it happens
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def outcome(self, finished: bool) -> Outcome:
        code = self.process.returncode
        _signal(self.process, signal.SIGKILL)  # what a crashed job may have left running
        if code == 0 and finished:
            return Outcome(self.job, "done", self.seconds())
        path = pathlib.Path(self.job.run_dir) / LOG
        with path.open("rb") as log:
            log.seek(self.position)
            lines = log.read().decode(errors="replace").strip().splitlines()
        what = f"exit {code}" if code else f"exit 0 without {RESULT}"
        return Outcome(
            self.job, "failed", self.seconds(), f"{what}: {lines[-1] if lines else 'no output'} (see {path})"
        )


def _lock(log: IO[bytes], job: Job) -> None:
    """Locks the log. The job inherits the lock, which so holds for as long as the job lives, whatever ends us."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SageError(f"another process runs in {job.run_dir}: wait for it or end it") from error


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """Ends process groups: a polite signal, time to finish, then a kill."""
    for process in processes:
        _signal(process, signal.SIGINT)
    deadline = time.monotonic() + _GRACE_S
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: wait no longer
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen, number: signal.Signals) -> None:
    """Signals the process and all it started; nothing when they are gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Lets SIGTERM (a cluster's notice, `kill`) end jobs as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _line(outcome: Outcome, number: int, total: int, describe: Callable[[Outcome], str]) -> str:
    parts = [f"[{number}/{total}]", f"{outcome.job.variant} seed {outcome.job.seed}:", outcome.status]
    if outcome.status != "skipped":
        parts.append(f"after {outcome.seconds:.0f} s")
    if outcome.status in ("done", "skipped"):
        parts.append(describe(outcome))
    return " ".join(filter(None, [*parts, outcome.reason]))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the jobs that the command line names; returns the exit status."""
    parser = command_line.parser("launch.local", __doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    jobs = command_line.jobs(args)
    if args.dry_run:
        return command_line.show(jobs)
    check_finished(jobs)
    return exit_status(jobs, run_jobs(jobs, parallel=args.parallel))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what only this adapter knows."""
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="jobs at a time (default 1)")


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
