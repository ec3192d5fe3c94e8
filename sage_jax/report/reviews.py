"""The table of `--mode=review`: what two policies wrote about the same episodes, and what it was worth."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import rich.box
import rich.console
import rich.table

from sage_jax.report.sweep import t_interval
from sage_jax.training.reviews import JudgedReview

_COLUMNS = {"added": "proposed", "updated": "updated", "kept": "kept", "duplicate": "duplicate"}


def report_reviews(
    run_dir: str | pathlib.Path, judged: Mapping[str, Sequence[JudgedReview]], *, title: str = ""
) -> None:
    """Prints a line for each policy and the difference of the last and the first; writes reviews.json.

    Args:
      run_dir: where the file goes.
      judged: policy -> its reviews, of the same episodes in the same order.
      title: of the table.
    """
    columns = ("policy", "reviews", *_COLUMNS.values(), "other", "edits", "utility of an edit", "> 0", "of a review")
    table = rich.table.Table(*columns, title=title, box=rich.box.SIMPLE_HEAD)
    for name, reviews in judged.items():
        table.add_row(name, *_cells(reviews))
    console = rich.console.Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(table)
    console.print(difference_line(judged), soft_wrap=True)
    path = pathlib.Path(run_dir) / "reviews.json"
    path.write_text(json.dumps({name: [dataclasses.asdict(r) for r in rs] for name, rs in judged.items()}, indent=1))
    console.print(f"wrote {path}", soft_wrap=True)


def difference_line(judged: Mapping[str, Sequence[JudgedReview]]) -> str:
    """Returns "after minus before, by episode: +0.10 [+0.05, +0.15] (95 % t interval, 240 episodes)"."""
    (first, before), *_, (last, after) = judged.items()
    pairs = [(a.utility, b.utility) for a, b in zip(after, before, strict=True)]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    if len(differences) < 2:
        return f"{last} minus {first}: {len(differences)} episodes whose two reviews were measured, too few to compare"
    low, high = t_interval(differences)
    return (
        f"utility of a review, {last} minus {first} on the same episode: {np.mean(differences):+.3f} "
        f"[{low:+.3f}, {high:+.3f}] (95 % t interval, {len(differences)} episodes)"
    )


def _cells(reviews: Sequence[JudgedReview]) -> list[str]:
    kinds = [review.outcome for review in reviews]
    edits = [r.utility for r in reviews if r.outcome in ("added", "updated") and r.utility is not None]
    every = [r.utility for r in reviews if r.utility is not None]
    shares = [kinds.count(kind) / len(kinds) if kinds else 0.0 for kind in _COLUMNS]
    return [
        str(len(reviews)),
        *(f"{share:.0%}" for share in (*shares, 1 - sum(shares) if kinds else 0.0)),
        str(len(edits)),
        _mean(edits),
        f"{np.mean([value > 0 for value in edits]):.0%}" if edits else "-",
        _mean(every),
    ]


def _mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "-"
    return f"{np.mean(values):+.3f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"
