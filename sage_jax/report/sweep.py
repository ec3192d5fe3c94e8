"""What a sweep showed: statistics over seeds from run folders, as pure functions, and the page made of them.

A run folder gives `eval/<tag>.json` and `metrics.jsonl`; nothing else is read, so a page can be made again at any
time. Seeds are the unit: games of one seed share a policy, so they are no independent samples of a method.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from sage_jax.errors import DataError
from sage_jax.metrics import EvalRow, read_jsonl, read_rows
from sage_jax.metrics.evaluation import ALL

BEFORE, AFTER = "before", "after"
# The first is how the run's agent would be used: with its bank when there is one. Compare methods by it.
CONDITIONS = ("own bank", "with skills", "without skills")
QUANTITIES = ("success", "steps", "tokens")
COSTS = {"tokens/generated": "generated tokens", "utility/probe_run": "probe episodes", "time/round": "seconds"}
MAX_EXACT = 20  # 2^20 sign patterns


@dataclasses.dataclass(frozen=True)
class SeedRun:
    """A finished run of one variant and seed.

    Attributes:
      variant: its variant.
      seed: its seed.
      evals: tag -> rows of eval/<tag>.json.
      metrics: lines of metrics.jsonl.
      git: revision of the code at the latest start.
      config: resolved configuration of that start.
      versions: of the packages, at that start.
      generations: tag -> split -> points of generations/<tag>.json, where skills are written over generations.
    """

    variant: str
    seed: int
    evals: Mapping[str, Sequence[EvalRow]]
    metrics: Sequence[Mapping[str, Any]]
    git: str | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generations: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over n seeds; sd is None for n < 2, both for n = 0."""

    n: int
    mean: float | None
    sd: float | None


@dataclasses.dataclass(frozen=True)
class Paired:
    """Differences of two conditions over the n seeds that have both.

    Attributes:
      n: pairs.
      mean: mean difference; None when n is 0.
      low: lower end of the 95 % t interval; None for n < 2.
      high: upper end.
      p: exact two-sided sign-flip test; never below 2 / 2^n, so 3 seeds cannot go below 0.25.
    """

    n: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None


@dataclasses.dataclass(frozen=True)
class Cell:
    """One variant on one split under one condition.

    Attributes:
      variant: the variant.
      split: the evaluation split.
      condition: one of CONDITIONS.
      seeds: seeds that have a value.
      values: success of each of these seeds.
      success: share of solved games after training.
      steps: mean environment steps of an episode.
      tokens: mean generated tokens of an episode.
      before: success before training, under "without skills" where there were none yet.
      gain: success after minus before, paired by seed.
      difference: success minus the first variant's, paired by seed; None for the first variant.
    """

    variant: str
    split: str
    condition: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    success: Spread
    steps: Spread
    tokens: Spread
    before: Spread
    gain: Paired
    difference: Paired | None


def read_run(variant: str, seed: int, folder: str | pathlib.Path) -> SeedRun | None:
    """Reads a run folder; None when its last evaluation is not there.

    Raises:
      DataError: a file is broken; names it.
    """
    folder = pathlib.Path(folder)
    paths = {tag: folder / "eval" / f"{tag}.json" for tag in (BEFORE, AFTER)}
    if not paths[AFTER].is_file():
        return None
    metrics, starts = folder / "metrics.jsonl", folder / "starts.jsonl"
    start = read_jsonl(starts)[-1] if starts.is_file() else {}
    return SeedRun(
        variant=variant,
        seed=seed,
        evals={tag: read_rows(path) for tag, path in paths.items() if path.is_file()},
        metrics=read_jsonl(metrics) if metrics.is_file() else [],
        git=start.get("git"),
        config=_read_json(folder / "config.json"),
        versions=start.get("versions", {}),
        generations={tag: points for tag in paths if (points := _read_json(folder / "generations" / f"{tag}.json"))},
    )


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns what a file holds, nothing when there is none."""
    try:
        return json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error


def spread(values: Sequence[float]) -> Spread:
    """Returns mean and sample standard deviation (divisor n - 1)."""
    n = len(values)
    return Spread(n, float(np.mean(values)) if n else None, float(np.std(values, ddof=1)) if n > 1 else None)


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Returns Student's interval of the mean: m -+ t(n - 1) sd / sqrt(n).

    Raises:
      ValueError: fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"an interval needs two values, got {n}")
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def sign_flip_p(differences: Sequence[float]) -> float:
    """Returns the exact two-sided p of "the signs are coin flips".

    It is the share of the 2^n sign patterns whose sum is at least as far from 0 as the observed one.

    Raises:
      ValueError: no differences, or more than MAX_EXACT.
    """
    if not 0 < len(differences) <= MAX_EXACT:
        raise ValueError(f"between 1 and {MAX_EXACT} differences can be tested exactly, got {len(differences)}")
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    observed = abs(sum(differences))
    # Rounding must not make the observed pattern, or its mirror, smaller than itself.
    return float(np.mean(np.abs(sums) >= observed - 1e-9 * max(1.0, observed)))


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> Paired:
    """Compares two conditions over the seeds they share.

    Args:
      values: seed -> value.
      baseline: seed -> value that is subtracted.
    """
    differences = [values[seed] - baseline[seed] for seed in sorted(values.keys() & baseline.keys())]
    n = len(differences)
    low, high = t_interval(differences) if n > 1 else (None, None)
    p = sign_flip_p(differences) if 0 < n <= MAX_EXACT else None
    return Paired(n, float(np.mean(differences)) if n else None, low, high, p)


def value_of(run: SeedRun, tag: str, split: str, condition: str, quantity: str, *, family: str = ALL) -> float | None:
    """Returns a field of EvalRow, by default over all families; None where there is no such row or value."""
    rows = {row.retrieval: row for row in run.evals.get(tag, ()) if row.split == split and row.family == family}
    if condition == CONDITIONS[0]:
        row = rows.get(True, rows.get(False))
    else:
        row = rows.get(condition == CONDITIONS[1])
    return None if row is None else getattr(row, quantity)


def summarise_sweep(runs: Sequence[SeedRun], variants: Sequence[str]) -> list[Cell]:
    """Returns the cells by split, condition and variant; the first variant is the baseline. Empty ones are left out."""
    splits = sorted({row.split for run in runs for row in run.evals[AFTER]})
    cells = []
    for split in splits:
        for condition in CONDITIONS:
            baseline = _by_seed(runs, variants[0], AFTER, split, condition, "success")
            for variant in variants:
                cell = _cell(runs, variant, split, condition, None if variant == variants[0] else baseline)
                if cell.seeds:
                    cells.append(cell)
    return cells


def costs(runs: Sequence[SeedRun], variants: Sequence[str]) -> dict[str, dict[str, Spread]]:
    """Returns {variant: {metric: spread over seeds of the sum over rounds}} of what training cost."""
    return {
        variant: {
            metric: spread(
                [sum(line.get(metric) or 0.0 for line in run.metrics) for run in runs if run.variant == variant]
            )
            for metric in COSTS
        }
        for variant in variants
    }


def curves(
    runs: Sequence[SeedRun], variants: Sequence[str], metrics: Sequence[str], *, window: int = 1
) -> dict[str, tuple[list[int], list[float], list[float], list[float]]]:
    """Returns {variant: (rounds, mean, lowest, highest)} over the seeds, at the rounds that every seed has.

    Args:
      runs: finished runs; a seed without any of the metrics is left out.
      variants: which, in order; those without such a seed are left out.
      metrics: names in metrics.jsonl; the first that a line holds counts.
      window: each seed's curve is first averaged over the last `window` rounds.
    """
    found = {}
    for variant in variants:
        series = [one for run in runs if run.variant == variant and (one := _series(run, metrics, window))]
        steps = sorted(set.intersection(*(set(one) for one in series))) if series else []
        if steps:
            table = np.array([[one[step] for step in steps] for one in series])
            found[variant] = (steps, table.mean(0).tolist(), table.min(0).tolist(), table.max(0).tolist())
    return found


def _series(run: SeedRun, metrics: Sequence[str], window: int) -> dict[int, float]:
    points = {}
    for line in run.metrics:
        values = [line[name] for name in metrics if line.get(name) is not None]
        if values:
            points[int(line["step"])] = float(values[0])
    steps = sorted(points)
    values = [points[step] for step in steps]
    return {step: float(np.mean(values[max(0, i + 1 - window) : i + 1])) for i, step in enumerate(steps)}


def _by_seed(
    runs: Sequence[SeedRun], variant: str, tag: str, split: str, condition: str, quantity: str
) -> dict[int, float]:
    found = {run.seed: value_of(run, tag, split, condition, quantity) for run in runs if run.variant == variant}
    return {seed: value for seed, value in found.items() if value is not None}


def _cell(
    runs: Sequence[SeedRun], variant: str, split: str, condition: str, baseline: Mapping[int, float] | None
) -> Cell:
    after = {name: _by_seed(runs, variant, AFTER, split, condition, name) for name in QUANTITIES}
    success = after["success"]
    before = _by_seed(runs, variant, BEFORE, split, condition, "success")
    if not before:  # an empty bank is not evaluated twice
        before = _by_seed(runs, variant, BEFORE, split, CONDITIONS[0], "success")
    before = {seed: value for seed, value in before.items() if seed in success}
    return Cell(
        variant=variant,
        split=split,
        condition=condition,
        seeds=tuple(sorted(success)),
        values=tuple(success[seed] for seed in sorted(success)),
        success=spread([success[seed] for seed in sorted(success)]),
        steps=spread(list(after["steps"].values())),
        tokens=spread(list(after["tokens"].values())),
        before=spread(list(before.values())),
        gain=paired(success, before),
        difference=None if baseline is None else paired(success, baseline),
    )
