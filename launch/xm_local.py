"""Hands a plan to XManager, whose local executor runs it on this machine: one work unit a job.

    python -m launch.xm_local --sweep=configs/sweeps/skillmaster_alfworld.py

Needs the extra `launch` (pip install -e '.[launch]'), best in an environment of its own: XManager asks for an older
protobuf than this project pins. --python then names the interpreter of the jobs, which is the project's. Flags behind
a bare `--` go to XManager.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from absl import app

from launch import command_line
from launch.local import is_finished
from launch.plan import Job
from sage_jax.errors import ConfigError


async def run(experiment: Any, jobs: Sequence[Job], parallel: int) -> list[str]:
    """Adds every unfinished job to an XManager experiment and waits for it.

    Args:
      experiment: of `xm_local.create_experiment`, or a mock of it.
      jobs: the plan; all have the same interpreter.
      parallel: jobs at a time.

    Returns:
      Names of the jobs that failed.
    """
    xm, xm_local = modules()
    free, failed = asyncio.Semaphore(parallel), []

    async def one(job: Job, executable: Any) -> None:
        async with free:
            unit = await experiment.add(
                xm.Job(
                    executable,
                    executor=xm_local.Local(),
                    name=job.name,
                    args=list(job.argv[1:]),
                    env_vars=dict(job.env),
                )
            )
            try:
                await unit.wait_until_complete()
            except xm.ExperimentUnitError:
                failed.append(job.name)

    waiting = [job for job in jobs if not is_finished(job)]
    if waiting:
        (executable,) = experiment.package([xm.binary(xm_local.Local.Spec(), path=jobs[0].argv[0])])
        await asyncio.gather(*(one(job, executable) for job in waiting))
    return failed


async def run_and_close(experiment: Any, jobs: Sequence[Job], parallel: int) -> list[str]:
    """Does `run` inside the experiment; returns the names of the jobs that failed."""
    failed: list[str] = []
    try:
        async with experiment:
            failed = await run(experiment, jobs, parallel)
    except RuntimeError:  # on leaving, XManager raises once more what a failed job raised
        if not failed:
            raise
    return failed


def modules() -> tuple[Any, Any]:
    """Returns `xmanager.xm` and `xmanager.xm_local`.

    Raises:
      ConfigError: XManager is not installed.
    """
    try:
        from xmanager import xm, xm_local
    except ImportError as error:
        raise ConfigError(f"XManager is missing ({error}): pip install -e '.[launch]', or use launch.local") from None
    return xm, xm_local


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the jobs that the command line names; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    split = given.index("--") if "--" in given else len(given)
    args = _parser().parse_args(given[:split])
    if args.parallel < 1:
        raise ConfigError(f"parallel={args.parallel}: an integer >= 1 would fit")
    jobs = command_line.jobs(args)
    if args.dry_run:
        return command_line.show(jobs)
    _, xm_local = modules()
    title = command_line.read_sweep(args).name
    status = 0

    def begin(_: list[str]) -> None:
        nonlocal status
        failed = asyncio.run(run_and_close(xm_local.create_experiment(experiment_title=title), jobs, args.parallel))
        status = int(bool(failed))
        if failed:
            print(f"failed: {', '.join(failed)}", file=sys.stderr)

    try:
        app.run(begin, argv=["launch.xm_local", *given[split + 1 :]])  # XManager reads absl flags
    except SystemExit as exit_:
        return int(exit_.code or status)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = command_line.parser("launch.xm_local", __doc__)
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="jobs at a time (default 1)")
    return parser


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
