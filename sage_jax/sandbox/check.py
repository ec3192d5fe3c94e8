"""`python -m sage_jax.sandbox.check`: runs hostile programs in every sandbox of this machine and prints a table.

Exits with 0 only when at least one sandbox works and each that works held against every program.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sage_jax.sandbox.backends import BACKENDS, Backend, Unsafe
from sage_jax.sandbox.choose import probe
from sage_jax.sandbox.corpus import CORPUS
from sage_jax.sandbox.judge import Target, Verdict
from sage_jax.sandbox.run import run_program
from sage_jax.sandbox.spec import Limits

_TIMED_RUNS = 21


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sage_jax.sandbox.check", description=__doc__)
    parser.add_argument("--backend", choices=list(BACKENDS), action="append", help="only this one (repeatable)")
    parser.add_argument("--family", choices=list(CORPUS), action="append", help="only these programs (repeatable)")
    arguments = parser.parse_args(argv)
    families = arguments.family or list(CORPUS)
    console = Console()
    works = []
    for name in arguments.backend or BACKENDS:
        reason = probe(name)
        if reason is None:
            works.append(BACKENDS[name])
        else:
            console.print(f"{name}: not here. {reason}", markup=False)
    if not works:
        console.print("no sandbox works on this machine", style="bold red")
        return 1
    verdicts = {backend.name: check(backend, families, console) for backend in works}
    console.print(_table(works, families, verdicts))
    return int(any(verdict.faults for found in verdicts.values() for part in found.values() for verdict in part))


def check(backend: Backend, families: Sequence[str], console: Console) -> dict[str, list[Verdict]]:
    """Returns the verdicts of a backend by family, printing faults as they are found."""
    verdicts: dict[str, list[Verdict]] = {}
    with Target() as target:
        for family in families:
            verdicts[family] = []
            for attack in CORPUS[family]:
                verdict = target.judge(backend, attack)
                verdicts[family].append(verdict)
                for fault in verdict.faults:
                    console.print(f"{backend.name}: {family}: {attack.name}: {fault}", markup=False)
    return verdicts


def overhead_ms(backend: Backend) -> float:
    """Returns the median wall time of an empty program in a sandbox, in milliseconds."""
    times = []
    for _ in range(_TIMED_RUNS):
        started = time.monotonic()
        run_program(backend, "result = 1", limits=Limits(wall_s=60.0))
        times.append((time.monotonic() - started) * 1000)
    return statistics.median(times)


def _table(
    backends: Sequence[Backend], families: Sequence[str], verdicts: dict[str, dict[str, list[Verdict]]]
) -> Table:
    table = Table(title="programs that a sandbox held against")
    table.add_column("attack")
    for backend in backends:
        table.add_column(backend.name, justify="right")
    total = [0] * len(backends)
    for family in families:
        held = [sum(not verdict.faults for verdict in verdicts[backend.name][family]) for backend in backends]
        total = [a + b for a, b in zip(total, held, strict=True)]
        table.add_row(family, *(f"{count}/{len(CORPUS[family])}" for count in held))
    programs = sum(len(CORPUS[family]) for family in families)
    table.add_row("all", *(f"{count}/{programs}" for count in total), style="bold")
    bare = overhead_ms(Unsafe())
    timed = [overhead_ms(backend) for backend in backends]
    table.add_row(f"p50 of an empty program, ms (bare: {bare:.0f})", *(f"{value:.0f}" for value in timed))
    return table


if __name__ == "__main__":
    sys.exit(main())
