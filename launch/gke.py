r"""Writes a plan as Kubernetes objects for TPU slices (or CPU nodes) of GKE: one object a job.

    python -m launch.gke --sweep=configs/sweeps/skillmaster_alfworld.py:paper --image=IMAGE --bucket=BUCKET \
        --tpu=tpu-v5p-slice --topology=2x2x1 > jobs.yaml
    kubectl apply -f jobs.yaml

A slice of one host is a Job, a larger one a JobSet (its controller must be installed in the cluster), whose pods are
the processes of one run (`experiments.main --distributed=auto`). The bucket is mounted at /runs, which is where --out
then begins. A pod that is evicted starts again and continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import re
import sys
from collections.abc import Sequence

import jinja2

from launch import command_line, plan
from sage_jax.config import suggest
from sage_jax.errors import ConfigError

MOUNT = "/runs"
# Chips of one host by kind of slice: those of a slice that is one host (by topology), and those of larger slices.
KINDS: dict[str, tuple[dict[str, int], int]] = {
    "tpu-v4-podslice": ({"2x2x1": 4}, 4),
    "tpu-v5p-slice": ({"2x2x1": 4}, 4),
    "tpu-v5-lite-podslice": ({"1x1": 1, "2x2": 4, "2x4": 8}, 4),
    "tpu-v6e-slice": ({"1x1": 1, "2x2": 4, "2x4": 8}, 4),
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A TPU slice as Kubernetes sees it; without a kind, a pod on an ordinary node."""

    kind: str = ""
    topology: str = ""
    hosts: int = 1
    chips_per_host: int = 0


def slice_of(kind: str, topology: str) -> Slice:
    """Returns hosts and chips of a slice.

    Raises:
      ConfigError: unknown kind, or a topology that this kind cannot have.
    """
    if not kind and not topology:
        return Slice()
    if kind not in KINDS:
        raise ConfigError(f"unknown tpu {kind!r}.{suggest(kind, KINDS)}")
    single, per_host = KINDS[kind]
    axes = 2 if "1x1" in single else 3
    if not re.fullmatch(r"[1-9]\d*" + r"x[1-9]\d*" * (axes - 1), topology):
        raise ConfigError(f"topology={topology!r}: {axes} numbers joined by 'x' would fit {kind}, e.g. {max(single)}")
    if topology in single:
        return Slice(kind, topology, 1, single[topology])
    chips = math.prod(map(int, topology.split("x")))
    if chips % per_host or chips // per_host < 2:
        raise ConfigError(
            f"topology={topology!r} of {kind} has {chips} chips: {', '.join(single)}, "
            f"or a larger one with a multiple of {per_host} would fit"
        )
    return Slice(kind, topology, chips // per_host, per_host)


def joined(jobs: Sequence[plan.Job], hosts: int) -> list[plan.Job]:
    """Returns the jobs as the processes of several hosts that join into one run.

    Raises:
      ConfigError: a job has no mesh, without which its processes end at once.
    """
    for job in jobs:
        if not plan.resolve(job).policy.mesh:
            raise ConfigError(f"variant {job.variant!r} has mesh='' on {hosts} hosts: give a mesh of all their chips")
    return [dataclasses.replace(job, argv=(*job.argv, "--distributed=auto")) for job in jobs]


def manifest(
    jobs: Sequence[plan.Job],
    *,
    sweep: str,
    image: str,
    bucket: str,
    namespace: str = "default",
    service_account: str = "",
    restarts: int = 20,
) -> str:
    """Returns the YAML text, one document per job.

    Args:
      jobs: the plan; all ask for the same resources.
      sweep: label of every pod.
      image: container image that holds the checkout as its working folder, with its requirements.
      bucket: Cloud Storage bucket mounted at /runs, where the run folders are.
      namespace: Kubernetes namespace.
      service_account: Kubernetes service account that may use the bucket.
      restarts: how often a job is started again.

    Raises:
      ConfigError: no jobs, differing resources, or a run folder that would be lost with its pod.
    """
    if not jobs or len({job.resources for job in jobs}) != 1:
        raise ConfigError(f"{len(jobs)} jobs: at least one, all with the same resources, would fit")
    for job in jobs:
        if not job.run_dir.startswith(f"{MOUNT}/"):
            raise ConfigError(f"run_dir={job.run_dir!r} is not in the bucket: choose an --out below {MOUNT}/")
    resources = jobs[0].resources
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = json.dumps  # JSON is YAML, so every text is quoted rightly
    return environment.get_template("gke.yaml.j2").render(
        jobs=jobs,
        sweep=re.sub(r"[^A-Za-z0-9.-]+", "-", sweep)[:63].strip("-."),
        image=image,
        bucket=bucket,
        mount=MOUNT,
        namespace=namespace,
        service_account=service_account,
        restarts=restarts,
        seconds=round(3600 * resources.hours),
        slice=slice_of(resources.tpu, resources.topology),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the YAML, or the plan with --dry_run; returns the exit status."""
    parser = command_line.parser("launch.gke", __doc__)
    _add_arguments(parser)
    parser.set_defaults(python="python")
    args = parser.parse_args(argv)
    resources = plan.Resources(
        cpus=args.cpus, memory_gb=args.memory_gb, hours=args.hours, tpu=args.tpu, topology=args.topology
    )
    name = command_line.read_sweep(args).name
    args.out = args.out or f"{MOUNT}/{name}"
    jobs = command_line.jobs(args, resources)
    hosts = slice_of(args.tpu, args.topology).hosts
    if hosts > 1:
        jobs = joined(jobs, hosts)
    if args.dry_run:
        return command_line.show(jobs)
    print(
        manifest(
            jobs,
            sweep=name,
            image=args.image,
            bucket=args.bucket,
            namespace=args.namespace,
            service_account=args.service_account,
        )
    )
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", required=True, help="container image with the checkout as its working folder")
    parser.add_argument("--bucket", required=True, help=f"Cloud Storage bucket to mount at {MOUNT}")
    parser.add_argument("--tpu", default="", help=f"kind of slice: {', '.join(KINDS)} (default: no TPU)")
    parser.add_argument("--topology", default="", help="chips along each axis, e.g. 2x2x1")
    parser.add_argument("--cpus", type=int, default=8, help="cores of a pod (default 8)")
    parser.add_argument("--memory_gb", type=int, default=64, help="memory of a pod (default 64)")
    parser.add_argument("--hours", type=float, default=72.0, help="longest time of a job (default 72)")
    parser.add_argument("--namespace", default="default", help="Kubernetes namespace")
    parser.add_argument("--service_account", default="", help="Kubernetes service account of the pods")


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
