"""The page that `--mode=compile` prints."""

from __future__ import annotations

import rich.box
import rich.console
import rich.table

from sage_jax.settings import RunSettings
from sage_jax.training.compile_check import CompileReport, Program, compile_run, roofline

ASSUMPTIONS = (
    "step time: each of compute, memory and network by itself at the chip's published best. Shortest: all of it "
    "overlaps, and the largest counts. Longest: nothing overlaps, and the sum counts. A good program comes within "
    "twice the shortest.",
    "the update is compiled with every place of its rows trained on, the most work and memory that rows can make.",
    "network: rings along one axis of the slice; a device sends (n - 1) / n of the array, twice for an all-reduce.",
    "memory: what a device holds between runs of all programs, and the working memory of the largest.",
)


def print_report(settings: RunSettings, topology: str, mesh: str) -> bool:
    """Compiles, prints each program as soon as it is compiled, then the whole; returns whether it fits.

    Raises:
      ConfigError: an unknown topology, or a mesh that does not fit it or the model.
    """
    console = rich.console.Console(width=120, highlight=False)
    console.print(f"compiling {settings.name} ({settings.scale}) for {topology}; large models take minutes")
    report = compile_run(
        settings, topology, mesh, compiled=lambda one: console.print(f"  {one.name}: {one.seconds:.0f} s")
    )
    table = rich.table.Table(
        "", "", title=f"{settings.name} ({settings.scale}) on {topology}", box=rich.box.SIMPLE_HEAD
    )
    for key, value in _rows(report):
        table.add_row(key, value)
    console.print(table)
    for text in (*report.notes, *ASSUMPTIONS):
        console.print(f"- {text}")
    return report.fits


def _rows(report: CompileReport) -> list[tuple[str, str]]:
    chip = report.topology.chip
    mesh = ", ".join(f"{axis}:{size}" for axis, size in report.mesh.items())
    rows = [
        ("model", f"{report.parameters:,} parameters, {report.model.dtype} compute"),
        ("devices", f"{len(report.topology.devices)} x {chip.name}, {_gib(chip.memory)} each"),
        ("mesh", mesh),
        ("micro-batch", f"{report.rows} rows x {report.length} tokens"),
    ]
    for program in report.programs:
        rows += _program_rows(report, program)
    verdict = "fits" if report.fits else "DOES NOT FIT"
    return [*rows, ("memory a device", f"{_gib(report.needed)} of {_gib(chip.memory)}: {verdict}")]


def _program_rows(report: CompileReport, program: Program) -> list[tuple[str, str]]:
    if program.costs is None:
        return [(program.name, f"the compiler refuses: it needs at least {_gib(program.working)}")]
    costs, times = program.costs, roofline(program.costs, report.topology.chip)
    held = f"holds {_gib(program.held)}, works with {_gib(program.working)}; compiled in {program.seconds:.0f} s"
    rows = [(program.name, held)]
    for one in costs.collectives:
        rows.append(("", f"{one.kind} among {one.group}: {one.count} times, {_gib(one.sent)} sent"))
    parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in times.items())
    rows.append(("", f"{costs.flops:.3g} FLOPs; {parts}"))
    shortest, longest = max(times.values()), sum(times.values())
    speed = ""
    if program.tokens:
        speed = (
            f"; {program.tokens:,} tokens, {program.tokens / longest:,.0f} to {program.tokens / shortest:,.0f} tokens/s"
        )
    rows.append(("", f"predicted {shortest:.3g} to {longest:.3g} s{speed}"))
    for flaw in _flaws(program):
        rows.append(("", flaw))
    return rows


def _flaws(program: Program) -> list[str]:
    """Says what the numbers leave out."""
    found = []
    if program.costs and program.costs.unknown_loops:
        found.append(f"{program.costs.unknown_loops} loops over the context count as if every context were full")
    if program.costs and program.costs.opaque:
        found.append(f"without the work inside kernels: {', '.join(program.costs.opaque)}")
    return found


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
