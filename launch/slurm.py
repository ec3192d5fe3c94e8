"""Writes a plan as a Slurm array script and, with --submit, hands it to sbatch.

    python -m launch.slurm --sweep=configs/sweeps/skillmaster_alfworld.py --partition=cpu --submit

The script lies in <out>/slurm.sh and can be read before it is submitted. Folders must be on a file system that the
nodes share. When the array is through, `python -m experiments.ablate --only_report` with the same --sweep and --out
writes the tables.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import jinja2

from launch import command_line, plan
from launch.local import RESULT
from sage_jax.errors import ConfigError, SageError

SCRIPT = "slurm.sh"


def script(
    jobs: Sequence[plan.Job],
    out: str,
    *,
    name: str,
    cwd: str,
    parallel: int = 0,
    options: Mapping[str, str] | None = None,
    setup: Sequence[str] = (),
) -> str:
    """Returns the text of the array script; task i runs jobs[i].

    Args:
      jobs: the plan; all ask for the same resources.
      out: folder of the sweep; logs go to <out>/slurm.
      name: name of the array in the queue.
      cwd: the checkout, where the command lines hold.
      parallel: tasks at a time; 0 leaves it to the cluster.
      options: further sbatch options without their dashes; empty values are left out.
      setup: shell lines to run first, e.g. "module load python".

    Raises:
      ConfigError: no jobs, differing resources, or a value that would break out of its line.
    """
    if not jobs or len({job.resources for job in jobs}) != 1:
        raise ConfigError(f"a Slurm array of {len(jobs)} jobs must ask for one kind of resources")
    if jobs[0].resources.tpu:
        raise ConfigError(f"tpu={jobs[0].resources.tpu!r} is no resource of a Slurm job: use launch.gke")
    for value in (out, name, *(options or {}).values()):
        # sbatch reads its comment lines as plain text: there is no quoting to rely on.
        if re.search(r"\s", value):
            raise ConfigError(f"{value!r} cannot stand in a #SBATCH line: use a text without white space")
    for job in jobs:
        for key in job.env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                raise ConfigError(f"environment variable {key!r} of {job.name} is no shell name")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment.get_template("slurm.sh.j2").render(
        jobs=jobs,
        name=name,
        cwd=cwd,
        logs=f"{out.rstrip('/')}/slurm",
        minutes=math.ceil(60 * jobs[0].resources.hours),
        resources=jobs[0].resources,
        parallel=parallel,
        options=dict(options or {}),
        setup=setup,
        result=RESULT,
    )


def submit(path: pathlib.Path) -> str:
    """Hands the script to sbatch; returns what sbatch says.

    Raises:
      SageError: there is no sbatch here, or it refused.
    """
    if shutil.which("sbatch") is None:
        raise SageError(f"sbatch is not on this machine: copy the checkout to a login node and run `sbatch {path}`")
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SageError(f"sbatch refused {path}: {done.stderr.strip()}")
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Writes, and perhaps submits; returns the exit status."""
    parser = command_line.parser("launch.slurm", __doc__)
    _add_arguments(parser)
    args = parser.parse_args(argv)
    resources = plan.Resources(cpus=args.cpus, memory_gb=args.memory_gb, hours=args.hours, gpus=args.gpus)
    jobs, out = command_line.jobs(args, resources), command_line.folder(args)
    if args.dry_run:
        return command_line.show(jobs)
    text = script(
        jobs,
        out,
        name=command_line.read_sweep(args).name,
        cwd=str(pathlib.Path.cwd()),
        parallel=args.parallel,
        options={"partition": args.partition, "account": args.account},
        setup=args.setup,
    )
    path = pathlib.Path(out) / SCRIPT
    (path.parent / "slurm").mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"wrote {path}: {len(jobs)} tasks")
    if args.submit:
        print(submit(path))
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cpus", type=int, default=2, help="cores of a job (default 2)")
    parser.add_argument("--memory_gb", type=int, default=16, help="memory of a job (default 16)")
    parser.add_argument("--hours", type=float, default=24.0, help="longest wall time of a job (default 24)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a job (default 0)")
    parser.add_argument("--parallel", type=int, default=0, metavar="N", help="tasks at a time (default: no limit)")
    parser.add_argument("--partition", default="", help="Slurm partition")
    parser.add_argument("--account", default="", help="Slurm account")
    parser.add_argument("--setup", action="append", default=[], help="shell line to run first (repeatable)")
    parser.add_argument("--submit", action="store_true", help="call sbatch")


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
