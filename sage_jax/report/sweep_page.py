"""The page of a sweep: results.md with its figure, and results.json with every number in it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from sage_jax.report.sweep import (
    AFTER,
    CONDITIONS,
    COSTS,
    Cell,
    Paired,
    SeedRun,
    Spread,
    costs,
    curves,
    summarise_sweep,
)

FIGURE = "success.svg"
WINDOW = 5


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run that belongs to the sweep, finished or not.

    Attributes:
      variant: its variant.
      seed: its seed.
      command: the exact command.
      note: why it is not in the statistics; empty when it is.
    """

    variant: str
    seed: int
    command: str
    note: str = ""


def write_sweep_page(
    out: str | pathlib.Path, title: str, runs: Sequence[SeedRun], planned: Sequence[Planned], variants: Sequence[str]
) -> pathlib.Path:
    """Writes results.md, results.json and the figure; returns the path of results.md.

    Args:
      out: folder of the sweep.
      title: its name.
      runs: the finished runs.
      planned: all runs.
      variants: names in order, the baseline first.
    """
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    cells = summarise_sweep(runs, variants)
    drawn = draw_success(runs, variants, folder / FIGURE)
    page = folder / "results.md"
    page.write_text(_markdown(title, cells, runs, planned, variants, drawn))
    document = {
        "sweep": title,
        "baseline": variants[0],
        "cells": [dataclasses.asdict(cell) for cell in cells],
        "costs": {
            variant: {metric: dataclasses.asdict(value) for metric, value in row.items()}
            for variant, row in costs(runs, variants).items()
        },
        "curves": {text: curves(runs, variants, metrics, window=window) for text, metrics, window in panels(runs)},
        "git": sorted({run.git for run in runs if run.git}),
        "planned": [dataclasses.asdict(one) for one in planned],
    }
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    return page


def panels(runs: Sequence[SeedRun]) -> list[tuple[str, tuple[str, ...], int]]:
    """Returns (title, metrics of which the first that is there counts, rounds to average over) of each panel.

    Evaluations are those of the split whose name comes last: valid_unseen, test.
    """
    training = ("rollouts of training", ("reward/success",), WINDOW)
    splits = {row.split for run in runs for row in run.evals[AFTER]}
    if not splits:
        return [training]
    split = max(splits)
    names = tuple(f"eval/{split}/all/{kind}_skills/success" for kind in ("with", "without"))
    return [training, (f"{split}, own bank", names, 1), (f"{split}, without skills", names[1:], 1)]


def draw_success(runs: Sequence[SeedRun], variants: Sequence[str], path: pathlib.Path) -> bool:
    """Draws success by round, the band being the seeds' range; returns whether there was anything to draw."""
    found = [
        (text, window, lines)
        for text, metrics, window in panels(runs)
        if (lines := curves(runs, variants, metrics, window=window))
    ]
    if not found:
        return False
    with matplotlib.rc_context({"svg.hashsalt": "sweep", "font.size": 8}):
        figure = Figure(figsize=(3.8 * len(found) + 1.2, 3.0), layout="constrained")
        for axes, (text, window, lines) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
            for variant, (steps, mean, low, high) in lines.items():
                colour = f"C{list(variants).index(variant) % 10}"
                axes.plot(steps, mean, label=variant, color=colour, marker="." if len(steps) < 30 else None)
                axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.set_title(text + (f" (mean of {window} rounds)" if window > 1 else ""))
            axes.set_xlabel("round")
            axes.set_ylim(-0.02, 1.02)
            axes.grid(alpha=0.3)
        figure.axes[0].set_ylabel("success")
        shown = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
        figure.legend(list(shown.values()), list(shown), loc="outside right upper")
        figure.savefig(path, metadata={"Date": None})
    return True


def spread_text(value: Spread, scale: float = 1.0, digits: int = 1) -> str:
    """Returns "43.3 ± 5.8", or "-" without a value."""
    if value.mean is None:
        return "-"
    sd = "" if value.sd is None else f" ± {scale * value.sd:.{digits}f}"
    return f"{scale * value.mean:.{digits}f}{sd}"


def paired_text(value: Paired | None) -> str:
    """Returns "+12.0 [-3.1, 27.1] p 0.25, n 3" in points of 0 to 100, or "-"."""
    if value is None or value.mean is None:
        return "-"
    interval = "" if value.low is None or value.high is None else f" [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"
    p = "" if value.p is None else f" p {value.p:.2g},"
    return f"{100 * value.mean:+.1f}{interval}{p} n {value.n}"


def _markdown(
    title: str,
    cells: Sequence[Cell],
    runs: Sequence[SeedRun],
    planned: Sequence[Planned],
    variants: Sequence[str],
    drawn: bool,
) -> str:
    lines = [f"# Sweep {title}", "", _explanation(len(runs), planned, variants[0]), ""]
    revisions = sorted({run.git[:12] for run in runs if run.git})
    if revisions:
        mixed = " The runs do not share a revision: compare with care." if len(revisions) > 1 else ""
        lines += [f"Code: {', '.join(revisions)}.{mixed}", ""]
    for split in dict.fromkeys(cell.split for cell in cells):
        for condition in CONDITIONS:
            rows = [cell for cell in cells if (cell.split, cell.condition) == (split, condition)]
            if rows:
                lines += [f"## {split}, {condition}", "", *_table(rows, variants[0]), ""]
    if drawn:
        lines += ["## Success by round", "", f"![success by round]({FIGURE})", ""]
        lines += ["Mean over seeds; the band is their range.", ""]
    lines += ["## Cost of training", "", *_cost_table(runs, variants), ""]
    absent = [one for one in planned if one.note]
    if absent:
        lines += ["## Not in the tables", "", *(f"- {one.variant}, seed {one.seed}: {one.note}" for one in absent), ""]
    lines += ["## Commands", "", *(f"    {one.command}" for one in planned), ""]
    return "\n".join(lines)


def _explanation(finished: int, planned: Sequence[Planned], baseline: str) -> str:
    return (
        f"{finished} of {len(planned)} runs. Success in percent, mean ± standard deviation over seeds. Gain is after "
        f"minus before training; difference is to `{baseline}`: both paired by seed, with the 95 % t interval, the p "
        "of the exact sign-flip test (at best 2 / 2^n: 0.25 with 3 seeds) and n, the number of pairs; no correction "
        "for several comparisons. Steps and tokens are those of an evaluation episode. `own bank` shows each agent as "
        "it would be used: with its skills when it has any."
    )


def _table(rows: Sequence[Cell], baseline: str) -> list[str]:
    table = [
        f"| variant | seeds | before | after | gain | difference to {baseline} | steps | tokens |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in rows:
        parts = [
            cell.variant,
            str(len(cell.seeds)),
            spread_text(cell.before, 100),
            spread_text(cell.success, 100),
            paired_text(cell.gain),
            paired_text(cell.difference),
            spread_text(cell.steps),
            spread_text(cell.tokens, digits=0),
        ]
        table.append(f"| {' | '.join(parts)} |")
    return table


def _cost_table(runs: Sequence[SeedRun], variants: Sequence[str]) -> list[str]:
    table = [f"| variant | {' | '.join(COSTS.values())} |", f"| --- |{' --- |' * len(COSTS)}"]
    for variant, row in costs(runs, variants).items():
        table.append(f"| {variant} | {' | '.join(spread_text(value, digits=0) for value in row.values())} |")
    return table
