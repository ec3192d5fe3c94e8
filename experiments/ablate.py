"""Runs an ablation and writes its tables.

    python -m experiments.ablate --sweep=configs/sweeps/skillmaster_alfworld.py

Each variant is run with each seed on this machine; <out>/results.md, results.json and success.svg are written anew
whenever a run ends. The same command again continues; --only_report makes the page from the folders that are there
(of runs made elsewhere, too: launch with the same --sweep and --out).
"""

import shlex
import sys
from collections.abc import Sequence

from launch import command_line, local
from launch.plan import Job
from sage_jax.report.sweep import AFTER, CONDITIONS, SeedRun, read_run, value_of
from sage_jax.report.sweep_page import Planned, write_sweep_page


def main(argv: Sequence[str] | None = None) -> int:
    """Runs, or only reports; returns the exit status."""
    parser = command_line.parser("experiments.ablate", __doc__)
    local.add_arguments(parser)
    parser.add_argument("--only_report", "--only-report", action="store_true", help="run nothing, write the page")
    args = parser.parse_args(argv)
    jobs = command_line.jobs(args)
    if args.dry_run:
        return command_line.show(jobs)
    local.check_finished(jobs)
    out, title = command_line.folder(args), command_line.read_sweep(args).name
    failures: dict[str, str] = {}

    def describe(outcome: local.Outcome) -> str:
        if outcome.status == "done":
            report(out, title, jobs, failures)
        run = read_run(outcome.job.variant, outcome.job.seed, outcome.job.run_dir)
        return "" if run is None else success_text(run)

    status = 0
    if not args.only_report:
        outcomes = local.run_jobs(jobs, parallel=args.parallel, describe=describe)
        failures |= {outcome.job.name: outcome.reason for outcome in outcomes if outcome.status == "failed"}
        status = local.exit_status(jobs, outcomes)
    print(report(out, title, jobs, failures))
    return status


def report(out: str, title: str, jobs: Sequence[Job], failures: dict[str, str]) -> str:
    """Writes the page of the runs that are finished; returns its path."""
    found = {job.name: read_run(job.variant, job.seed, job.run_dir) for job in jobs}
    planned = [
        Planned(job.variant, job.seed, shlex.join(["python", *job.argv[1:]]), _note(job, found[job.name], failures))
        for job in jobs
    ]
    runs = [run for run in found.values() if run is not None]
    variants = list(dict.fromkeys(job.variant for job in jobs))
    return str(write_sweep_page(out, title, runs, planned, variants))


def success_text(run: SeedRun) -> str:
    """Returns "valid_seen 40 %, valid_unseen 35 %" of the agent as it would be used."""
    splits = sorted({row.split for row in run.evals[AFTER]})
    values = {split: value_of(run, AFTER, split, CONDITIONS[0], "success") for split in splits}
    return ", ".join(f"{split} {100 * value:.0f} %" for split, value in values.items() if value is not None)


def _note(job: Job, run: SeedRun | None, failures: dict[str, str]) -> str:
    return "" if run is not None else failures.get(job.name, "not finished")


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
