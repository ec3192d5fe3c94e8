"""The tables at the end of a run: success, steps and tokens by family, before and after, with and without skills.

A run of Skill-R1 has a second one: reward and instances solved by generation.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
import rich.console
import rich.measure
import rich.table

from sage_jax.errors import DataError
from sage_jax.metrics import EvalRow, read_rows
from sage_jax.metrics.evaluation import ALL

_WIDEST = 1000  # characters of a line


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One split's rows side by side.

    Attributes:
      split: the split.
      columns: (tag, retrieval) of each column.
      rows: (family, one row or None per column), "all" first.
    """

    split: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, tuple[EvalRow | None, ...]], ...]


def compare(evals: Mapping[str, Sequence[EvalRow]]) -> list[Comparison]:
    """Returns one comparison per split.

    Args:
      evals: tag ("before", "after", ...) -> rows, in the order of the columns.
    """
    by_key = {(tag, row.retrieval, row.split, row.family): row for tag, rows in evals.items() for row in rows}
    comparisons = []
    for split in sorted({key[2] for key in by_key}):
        here = [key for key in by_key if key[2] == split]
        columns = tuple(
            (tag, skills) for tag in evals for skills in (True, False) if (tag, skills, split, ALL) in by_key
        )
        families = sorted({key[3] for key in here}, key=lambda family: (family != ALL, family))
        rows = tuple((family, tuple(by_key.get((*column, split, family)) for column in columns)) for family in families)
        comparisons.append(Comparison(split, columns, rows))
    return comparisons


def column_title(column: tuple[str, bool]) -> str:
    """Returns "before, with skills"."""
    return f"{column[0]}, {'with' if column[1] else 'without'} skills"


def cell_text(row: EvalRow | None) -> tuple[str, str]:
    """Returns the two lines of a cell: success with its 95 % interval, then steps and tokens.

    Of scenarios the first also has the share solved as a whole (SGC), and the second how often a skill that was shown
    was used, with the success of those episodes in brackets.
    """
    if row is None:
        return "-", ""
    failed = f", {row.failed} failed" if row.failed else ""
    if row.success is None or row.steps is None or row.tokens is None:
        return "-", f"n 0{failed}"
    success = f"{100 * row.success:.0f} % ({100 * row.wilson_low:.0f}-{100 * row.wilson_high:.0f})"
    if row.score is not None and abs(row.score - row.success) > 1e-9:  # an environment that pays for parts
        success += f", score {100 * row.score:.0f}"
    if row.scenario_success is not None:
        success += f", SGC {100 * row.scenario_success:.0f}"
    costs = f"{row.steps:.1f} steps, {row.tokens:.0f} tok{failed}"
    if row.use_rate is not None:
        costs += f", used {100 * row.use_rate:.0f} %"
        costs += "" if row.used_success is None else f" ({100 * row.used_success:.0f})"
    return success, costs


def rich_tables(evals: Mapping[str, Sequence[EvalRow]], title: str = "") -> list[rich.table.Table]:
    """Returns one table per split, for a terminal."""
    tables = []
    for comparison in compare(evals):
        table = rich.table.Table(
            title=" ".join(filter(None, [title, comparison.split])),
            caption="success (Wilson 95 %), score where it differs, mean environment steps, mean generated tokens",
            box=rich.box.SIMPLE_HEAD,
            show_lines=False,
        )
        table.add_column("family", no_wrap=True)
        for column in comparison.columns:
            table.add_column(column_title(column))
        for family, cells in comparison.rows:
            count = max((cell.n for cell in cells if cell is not None), default=0)
            style = "bold" if family == ALL else None
            table.add_row(f"{family}\n n = {count}", *("\n".join(cell_text(cell)) for cell in cells), style=style)
        tables.append(table)
    return tables


def print_tables(
    evals: Mapping[str, Sequence[EvalRow]], *, title: str = "", console: rich.console.Console | None = None
) -> None:
    """Prints the tables: cells wrap in a terminal that is too narrow; without one a table is as wide as it needs."""
    console = console or rich.console.Console()
    for table in rich_tables(evals, title):
        if not console.is_terminal:
            needed = rich.measure.Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
            console.width = max(console.width, needed)
        console.print(table)


def report_run(run_dir: str | pathlib.Path, tags: Sequence[str], *, title: str = "") -> None:
    """Prints the tables of the evaluation files that a run folder has among `tags`.

    Raises:
      DataError: it has none of them.
    """
    paths = {tag: pathlib.Path(run_dir) / "eval" / f"{tag}.json" for tag in tags}
    evals = {tag: read_rows(path) for tag, path in paths.items() if path.exists()}
    if not evals:
        raise DataError(f"{run_dir} holds no evaluation {' or '.join(tags)}: run --mode=eval or finish the training")
    print_tables(evals, title=title)
    paths = {tag: pathlib.Path(run_dir) / "generations" / f"{tag}.json" for tag in tags}
    curves = {tag: json.loads(path.read_text()) for tag, path in paths.items() if path.exists()}
    console = rich.console.Console()
    for table in generation_tables(curves, title):
        console.print(table)


def generation_tables(
    curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], title: str
) -> list[rich.table.Table]:
    """Returns a table for each split: a line a generation, two columns a tag.

    Args:
      curves: tag -> split -> points with generation, reward and solved, as in generations/<tag>.json.
      title: goes before the split.
    """
    tables = []
    for split in sorted({split for curve in curves.values() for split in curve}):
        table = rich.table.Table(
            title=" ".join(filter(None, [title, split, "by generation"])),
            caption="mean reward of the rollouts under a generation's skill; instances solved by any rollout so far",
            box=rich.box.SIMPLE_HEAD,
        )
        table.add_column("generation")
        tags = [tag for tag in curves if split in curves[tag]]
        for tag in tags:
            table.add_column(f"{tag}, reward")
            table.add_column(f"{tag}, solved")
        for points in itertools.zip_longest(*(curves[tag][split] for tag in tags)):
            number = next(point["generation"] for point in points if point)
            values = [point and point[key] for point in points for key in ("reward", "solved")]
            cells = ["-" if value is None else f"{100 * value:.0f} %" for value in values]
            table.add_row(str(number), *cells)
        tables.append(table)
    return tables
