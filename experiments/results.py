"""Rebuilds the generated parts of docs/results.md from run folders: `make results`.

For every part `<!-- begin sweep=FILE only=A,B -->` of the page the finished runs of that sweep are read from
<runs>/<name of the sweep>, and what the page needs of them is kept in docs/records/<name>.json; runs that are not on
this machine stay as they were recorded. Tables, figures and checksums are then made from the records alone.
--check changes nothing and fails when the page is not what the records say.
"""

import argparse
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Sequence

from launch import command_line, plan
from sage_jax.report.records import Record, read_record, write_record
from sage_jax.report.results import listed, parts, render_matrix, render_sweep, rewrite
from sage_jax.report.sweep import read_run


def main(argv: Sequence[str] | None = None) -> int:
    """Rebuilds, or checks; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.results", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=pathlib.Path, default=pathlib.Path("docs/results.md"))
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/sweeps"), help="folder of the sweeps")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the page is out of date")
    args = parser.parse_args(argv)
    text, records = args.page.read_text(), args.page.parent / "records"
    if args.check:
        with tempfile.TemporaryDirectory() as folder:
            current = build(text, records, pathlib.Path(folder))
            figures = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
        kept = args.page.parent / "figures"
        stale = [name for name, data in figures.items() if not _same(kept / name, data)]
        if current != text or stale:
            print(f"{', '.join([str(args.page)] * (current != text) + stale)}: out of date; run `make results`")
            return 1
        return 0
    for words in parts(text):
        if "sweep" in words:
            print(collect(words["sweep"], args.runs, records))
    args.page.write_text(build(text, records, args.page.parent / "figures"))
    print(f"wrote {args.page}")
    return 0


def collect(spec: str, runs: pathlib.Path, records: pathlib.Path) -> str:
    """Records the finished runs of a sweep that are under `runs`; returns a line about it."""
    sweep = plan.load_sweep(spec)
    jobs = plan.make_jobs(sweep, f"runs/sweeps/{sweep.name}")
    here = {(job.variant, job.seed): runs / sweep.name / job.variant / f"seed_{job.seed}" for job in jobs}
    found = [run for (variant, seed), folder in here.items() if (run := read_run(variant, seed, folder)) is not None]
    commands = {(job.variant, job.seed): shlex.join(["python", *job.argv[1:]]) for job in jobs}
    path = records / f"{sweep.name}.json"
    record = Record(sweep.name, tuple(one.name for one in sweep.variants), commands, tuple(found))
    if path.is_file():
        record = read_record(path).merge(record)
    write_record(path, record)
    return f"{sweep.name}: {len(record.runs)} of {len(jobs)} runs recorded, {len(found)} of them read from {runs}"


def build(text: str, records: pathlib.Path, figures: pathlib.Path) -> str:
    """Returns the page with its parts made from the records; writes the figures."""

    def render(words: dict[str, str]) -> str:
        if "matrix" in words:
            return render_matrix([read_record(path) for path in sorted(records.glob("*.json"))])
        name = pathlib.Path(words["sweep"].partition(":")[0]).stem
        record = read_record(records / f"{name}.json").only(listed(words, "only"))
        return render_sweep(record, figures, listed(words, "with"))

    return rewrite(text, render)


def _same(path: pathlib.Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
