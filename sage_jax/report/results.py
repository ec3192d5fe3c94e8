"""The generated parts of docs/results.md: tables, figures and checksums from records of runs.

A record is what a page needs of a run folder: configuration, versions, evaluations, some metrics. Records are kept
beside the page (docs/records/<name>.json), so that every number on it can be made again, and checked, without the
runs. A part stands between two comments:

    <!-- begin sweep=configs/sweeps/x.py only=a,b with=families -->  ...  <!-- end -->
    <!-- begin matrix -->  ...  <!-- end -->
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sage_jax.errors import DataError
from sage_jax.report.records import LOCAL_KEYS, Record
from sage_jax.report.result_details import TABLES
from sage_jax.report.sweep import (
    AFTER,
    BEFORE,
    CONDITIONS,
    COSTS,
    SeedRun,
    Spread,
    costs,
    paired,
    spread,
    value_of,
)
from sage_jax.report.sweep_page import draw_success, paired_text, spread_text

# The first that stands for a benchmark or a method comes first in the matrix.
ENVIRONMENTS = ("alfworld", "webshop", "appworld", "appworld_lite", "webwalker", "gaia")
METHODS = ("grpo", "skillmaster", "sage", "skillr1")
_PART = re.compile(r"(<!-- begin (?P<spec>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def parse_part(spec: str) -> dict[str, str]:
    """Returns the words of a part's comment: {"sweep": ..., "only": ..., "with": ...} or {"matrix": ""}.

    Raises:
      DataError: it names neither a sweep nor the matrix, or tables that there are not.
    """
    words = dict(word.partition("=")[::2] for word in spec.split())
    if not ("sweep" in words and words.keys() <= {"sweep", "only", "with"}) and words != {"matrix": ""}:
        raise DataError(f"<!-- begin {spec} -->: expected 'matrix', or 'sweep=FILE' and perhaps 'only=A,B', 'with=C,D'")
    if unknown := set(listed(words, "with")) - TABLES.keys():
        raise DataError(f"<!-- begin {spec} -->: no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    return words


def listed(words: Mapping[str, str], key: str) -> list[str]:
    """Returns what a word lists: "only=A,B" gives A and B."""
    return [one for one in words.get(key, "").split(",") if one]


def parts(text: str) -> list[dict[str, str]]:
    """Returns the parsed comments of a page's parts, in order."""
    return [parse_part(match["spec"]) for match in _PART.finditer(text)]


def rewrite(text: str, render: Callable[[dict[str, str]], str]) -> str:
    """Returns the page with what `render` gives for a part's words between its comments."""
    return _PART.sub(lambda match: f"{match[1]}{render(parse_part(match['spec'])).strip()}\n{match[3]}", text)


def render_sweep(record: Record, figures: pathlib.Path, tables: Sequence[str] = ()) -> str:
    """Returns the tables of a sweep with its figure, which is written to `figures`, and what the numbers depend on.

    Args:
      record: of the sweep.
      figures: folder for its figure.
      tables: names of result_details.TABLES to add.
    """
    figure = figures / f"{record.name}.svg"
    figures.mkdir(parents=True, exist_ok=True)
    drawn = draw_success(record.runs, record.variants, figure)
    lines = [_explanation(record), "", *_success_table(record), ""]
    scores = _score_table(record)
    lines += [*scores, ""] if scores else []
    differences = _differences(record)
    lines += [*differences, ""] if differences else []
    for name in tables:
        lines += [*TABLES[name](record), ""]
    lines += [*_cost_table(record), ""]
    lines += [f"![success by round](figures/{figure.name})", ""] if drawn else []
    lines += [*(f"    {record.commands[run.variant, run.seed]}" for run in record.runs if run.seed == 0), ""]
    return "\n".join([*lines, checksums(record.runs)])


def render_matrix(records: Sequence[Record]) -> str:
    """Returns the table method x environment: success before and after in percent, and how many seeds that is."""
    found: dict[tuple[str, str], list[SeedRun]] = {}
    for record in records:
        for run in record.runs:
            key = (run.config.get("benchmark", ""), run.config.get("method", ""))
            if _plain(run, record):
                found.setdefault(key, []).append(run)
    lines = [f"| environment, split | {' | '.join(METHODS)} |", f"| --- |{' --- |' * len(METHODS)}"]
    shown = []
    for environment in ENVIRONMENTS:
        own = [run for method in METHODS for run in found.get((environment, method), [])]
        for split in sorted({row.split for run in own for row in run.evals[AFTER]}):
            cells = [_matrix_cell(found.get((environment, method), []), split) for method in METHODS]
            lines.append(f"| {environment}, {split} | {' | '.join(cells)} |")
        shown += own
    return "\n".join([*lines, "", checksums(shown)]) if shown else "No run is recorded yet."


def checksums(runs: Sequence[SeedRun]) -> str:
    """Returns the line that tells what configurations, versions and code some numbers come from."""
    configs = [
        [run.variant, run.seed, {key: value for key, value in run.config.items() if key not in LOCAL_KEYS}]
        for run in runs
    ]
    versions = sorted({json.dumps(dict(run.versions), sort_keys=True) for run in runs})
    code = sorted({run.git[:12] for run in runs if run.git})
    several = " (several revisions: compare with care)" if len(code) > 1 else ""
    return (
        f"*Configs `{_digest(configs)}`, versions `{_digest(versions)}`, code {', '.join(code) or 'unknown'}{several}, "
        f"{len(runs)} runs.*"
    )


def _plain(run: SeedRun, record: Record) -> bool:
    """Whether a run is a method as its config has it: of a sweep's variants, the one named after its method."""
    return run.variant == run.config.get("method", "") or len(record.variants) == 1


def _matrix_cell(runs: Sequence[SeedRun], split: str) -> str:
    before, after = (spread(_values(runs, tag, split, CONDITIONS[0], "success")) for tag in (BEFORE, AFTER))
    if after.mean is None:
        return "-"
    return f"{spread_text(before, 100, 0)} → {spread_text(after, 100, 0)} ({after.n})"


def _explanation(record: Record) -> str:
    seeds = sorted({run.seed for run in record.runs})
    over = "mean ± standard deviation over seeds " if len(seeds) > 1 else "of one run, seed "
    return (
        f"Success in percent, {over}{', '.join(map(str, seeds))}. *As used* shows each agent its skills if it has any; "
        "gain is after minus before, paired by seed, with the 95 % t interval and the p of the exact sign-flip test "
        "(at best 2 / 2^n)."
    )


def _success_table(record: Record) -> list[str]:
    table = [
        "| split | method | before | after, with its skills | after, without skills | gain as used | each seed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for split in record.splits():
        for variant in record.variants:
            runs = [run for run in record.runs if run.variant == variant]
            used = {run.seed: value_of(run, AFTER, split, CONDITIONS[0], "success") for run in runs}
            start = {run.seed: value_of(run, BEFORE, split, CONDITIONS[0], "success") for run in runs}
            used, start = ({k: v for k, v in one.items() if v is not None} for one in (used, start))
            if not used:
                continue
            cells = [
                split,
                variant,
                spread_text(spread(list(start.values())), 100),
                spread_text(spread(_values(runs, AFTER, split, CONDITIONS[1], "success")), 100),
                spread_text(spread(_values(runs, AFTER, split, CONDITIONS[2], "success")), 100),
                paired_text(paired(used, start)),
                ", ".join(f"{100 * used[seed]:.0f}" for seed in sorted(used)),
            ]
            table.append(f"| {' | '.join(cells)} |")
    return table


def _score_table(record: Record) -> list[str]:
    """Returns scores in points of 0 to 100 where an environment has scores between solved and not."""
    rows = []
    for split in record.splits():
        for variant in record.variants:
            runs = [run for run in record.runs if run.variant == variant]
            before, after = (spread(_values(runs, tag, split, CONDITIONS[0], "score")) for tag in (BEFORE, AFTER))
            success = spread(_values(runs, AFTER, split, CONDITIONS[0], "success"))
            if after.mean is not None and success.mean is not None and abs(after.mean - success.mean) > 1e-9:
                rows.append(f"| {split} | {variant} | {spread_text(before, 100)} | {spread_text(after, 100)} |")
    return (
        ["| split | method | score before | score after, as used |", "| --- | --- | --- | --- |", *rows] if rows else []
    )


def _differences(record: Record) -> list[str]:
    """Returns a line for each variant and split: the difference to the first variant, as used."""
    lines = []
    for split in record.splits():
        values = {
            variant: {
                run.seed: value
                for run in record.runs
                if run.variant == variant
                and (value := value_of(run, AFTER, split, CONDITIONS[0], "success")) is not None
            }
            for variant in record.variants
        }
        first, *others = record.variants
        lines += [
            f"- {split}: {variant} minus {first}, as used: {paired_text(paired(values[variant], values[first]))}"
            for variant in others
            if values[variant] and values[first]
        ]
    return lines


def _cost_table(record: Record) -> list[str]:
    table = [f"| method, sum over a run | {' | '.join(COSTS.values())} |", f"| --- |{' --- |' * len(COSTS)}"]
    for variant, row in costs(record.runs, record.variants).items():
        if any(run.variant == variant for run in record.runs):
            table.append(f"| {variant} | {' | '.join(_count(value) for value in row.values())} |")
    return table


def _count(value: Spread) -> str:
    return spread_text(value, digits=0)


def _values(runs: Sequence[SeedRun], tag: str, split: str, condition: str, quantity: str) -> list[float]:
    found = [value_of(run, tag, split, condition, quantity) for run in runs]
    return [value for value in found if value is not None]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
