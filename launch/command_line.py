"""The flags that all adapters share, and the plan they make of them."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Callable, Sequence

from launch import plan
from sage_jax.errors import ConfigError, SageError


def parser(program: str, doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the shared flags; `doc` is the text above them in --help."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--sweep", metavar="FILE[:ARG]", help="sweep file; ARG (scale,key=value) goes to every config")
    source.add_argument("--config", metavar="FILE[:ARG]", help="one config instead of a sweep file")
    made.add_argument(
        "--grid", action="append", default=[], metavar="KEY=V1,V2", help="with --config: an axis of a grid (repeatable)"
    )
    made.add_argument("--seeds", metavar="0,1,2", help="seeds of each variant (default: the sweep file's, or 0)")
    made.add_argument("--only", default="", metavar="A,B", help="only these variants")
    made.add_argument("--out", metavar="DIR", help="folder of the sweep (default runs/sweeps/<name>, :scale added)")
    made.add_argument("--env", action="append", default=[], metavar="K=V", help="environment of the jobs (repeatable)")
    made.add_argument("--python", default=sys.executable, help="interpreter of the jobs (default: this one)")
    made.add_argument("--dry_run", action="store_true", help="check every job, print the plan as JSON, start nothing")
    return made


def jobs(args: argparse.Namespace, resources: plan.Resources | None = None) -> list[plan.Job]:
    """Returns the checked jobs that the flags name.

    Raises:
      ConfigError: a flag or a configuration is wrong.
    """
    sweep = read_sweep(args)
    return plan.make_jobs(
        sweep,
        folder(args),
        python=args.python,
        env=dict(_pair(text, "--env") for text in args.env),
        resources=resources,
    )


def folder(args: argparse.Namespace) -> str:
    """Returns the folder of the sweep; runs of another scale lie apart: x.py:smoke in runs/sweeps/x_smoke."""
    path, _, scale = (args.sweep or args.config).partition(":")
    name = "_".join(filter(None, (pathlib.Path(path).stem, re.sub(r"[^\w.=-]+", "_", scale))))
    return args.out or f"runs/sweeps/{name}"


def read_sweep(args: argparse.Namespace) -> plan.Sweep:
    """Returns the sweep that the flags name, cut down to --only and --seeds."""
    if args.sweep:
        if args.grid:
            raise ConfigError("--grid belongs to --config; a sweep file has its own 'grid'")
        sweep = plan.load_sweep(args.sweep)
    else:
        axes = {key: values.split(",") for key, values in (_pair(text, "--grid") for text in args.grid)}
        stem = pathlib.Path(args.config.partition(":")[0]).stem
        sweep = plan.make_sweep(stem, args.config, plan.grid(axes))
    if args.seeds:
        # Made anew, so that the seeds are checked.
        variants = {one.name: {**one.overrides, "config": one.config} for one in sweep.variants}
        sweep = plan.make_sweep(sweep.name, "", variants, seeds=_seeds(args.seeds))
    return plan.select(sweep, [name for name in args.only.split(",") if name])


def show(planned: Sequence[plan.Job]) -> int:
    """Prints the plan as JSON; returns exit status 0."""
    print(plan.as_json(planned))
    return 0


def guarded(main: Callable[[], int]) -> int:
    """Runs a main function; an error that a user can mend is one line and exit status 2."""
    try:
        return main()
    except SageError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def _pair(text: str, flag: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{flag} {text!r} is no KEY=VALUE")
    return key, value


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds {text!r}: integers joined by ',' would fit") from error
