"""Further tables of a sweep that a part of docs/results.md may ask for: `with=families,generations,chains`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from sage_jax.metrics.evaluation import ALL
from sage_jax.report.records import Record
from sage_jax.report.sweep import AFTER, BEFORE, CONDITIONS, spread, value_of
from sage_jax.report.sweep_page import spread_text

USED, SKILLS, BARE = CONDITIONS
_CHAINS = {
    "success": ("TGC, %", 100, 1),
    "scenario_success": ("SGC, %", 100, 1),
    "steps": ("steps", 1, 2),
    "tokens": ("generated tokens", 1, 0),
    "use_rate": ("used a skill where one was shown, %", 100, 0),
}


def families_table(record: Record) -> list[str]:
    """Returns success by kind of task, in percent: the first variant before training, all variants after it."""
    lines = []
    for split in record.splits():
        rows = [row for run in record.runs for row in run.evals[AFTER] if row.split == split]
        families = [*sorted({row.family for row in rows} - {ALL}), ALL]
        lines += ["", *_head([split, *families])]
        for name, variant, tag, condition in _conditions(record, (USED,)):
            cells = [_cell(record, variant, tag, split, condition, "success", 100, 0, family) for family in families]
            lines += _row(name, cells)
    return lines[1:]


def chains_table(record: Record) -> list[str]:
    """Returns what the tasks of scenarios came to and cost: TGC, SGC, steps, tokens, use of skills."""
    lines = []
    for split in record.splits():
        lines += ["", *_head([split, *(title for title, _, _ in _CHAINS.values())])]
        for name, variant, tag, condition in _conditions(record, (SKILLS, BARE)):
            lines += _row(
                name,
                [
                    _cell(record, variant, tag, split, condition, quantity, scale, digits)
                    for quantity, (_, scale, digits) in _CHAINS.items()
                ],
            )
    return lines[1:]


def generations_table(record: Record) -> list[str]:
    """Returns mean reward / share of instances that any rollout solved so far, in percent, by generation."""
    lines = []
    for split in record.splits():
        curves: dict[str, list[str]] = {}
        for name, variant, tag, _ in _conditions(record, (USED,))[1:]:
            runs = [run.generations.get(tag, {}).get(split) for run in record.runs if run.variant == variant]
            found = [[(point["reward"], point["solved"]) for point in points] for points in runs if points]
            if found:
                means = 100 * np.mean(np.array(found, float), axis=0)  # nan where a generation had no reward
                curves[name] = [f"{reward:.0f} / {solved:.0f}" for reward, solved in means]
        last = max((len(cells) for cells in curves.values()), default=0)
        lines += ["", *_head([split, *(f"generation {number}" for number in range(last))])]
        lines += [line for name, cells in curves.items() for line in _row(name, cells + [""] * (last - len(cells)))]
    return lines[1:]


TABLES: Mapping[str, Callable[[Record], list[str]]] = {
    "families": families_table,
    "chains": chains_table,
    "generations": generations_table,
}


def _conditions(record: Record, after: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """Returns (name, variant, tag, condition): the first variant before training, then all after it."""
    first = record.variants[0]
    rows = [(f"{first}, before, {BARE}", first, BEFORE, BARE), (f"{first}, before", first, BEFORE, USED)]
    return rows + [
        (f"{variant}, after" + f", {condition}" * (condition != USED), variant, AFTER, condition)
        for variant in record.variants
        for condition in after
    ]


def _cell(
    record: Record,
    variant: str,
    tag: str,
    split: str,
    condition: str,
    quantity: str,
    scale: float,
    digits: int,
    family: str = ALL,
) -> str:
    values = [
        value_of(run, tag, split, condition, quantity, family=family) for run in record.runs if run.variant == variant
    ]
    return spread_text(spread([value for value in values if value is not None]), scale, digits)


def _head(cells: list[Any]) -> list[str]:
    return [f"| {' | '.join(cells)} |", f"|{' --- |' * len(cells)}"]


def _row(name: str, cells: list[str]) -> list[str]:
    """Returns the row, or nothing where there is nothing to show."""
    return [f"| {' | '.join([name, *cells])} |"] if any(cell not in ("", "-") for cell in cells) else []
