"""From finished evaluation episodes to the rows of an evaluation file: pure functions, no I/O but the JSON itself.

`eval/<tag>.json` is a list of rows; `report/` and the table at the end of a run are made from such files.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Sequence

from sage_jax.errors import DataError

ALL = "all"
METRICS_OF_A_ROW = (
    "success", "score", "wilson_low", "wilson_high", "steps", "tokens", "n", "failed",
    "scenario_success", "scenarios", "use_rate", "used_success", "library",
)  # fmt: skip
Z_95 = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class EpisodeOutcome:
    """One evaluation episode.

    Attributes:
      split: "valid_unseen", ...
      retrieval: whether skills were shown.
      family: task family.
      success: whether the task was solved; None when the infrastructure failed (not the agent).
      score: the environment's own score in [0, 1]; None where it knows nothing between solved (1) and not (0).
      steps: environment steps.
      tokens: generated tokens.
      scenario: the scenario of the task, "" where tasks come alone.
      used: whether a skill that was shown was used; None when none was shown, or it is not known.
      library: size of the library at the end of its chain; None without one.
      error: why the infrastructure failed; "" when it did not.
    """

    split: str
    retrieval: bool
    family: str
    success: bool | None
    steps: int
    tokens: int
    score: float | None = None
    scenario: str = ""
    used: bool | None = None
    library: int | None = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class EvalRow:
    """One row: a family (or "all") of one split, with or without retrieval.

    Attributes:
      split: as in the episodes.
      retrieval: as in the episodes.
      family: as in the episodes, or "all".
      n: episodes with an outcome.
      failed: episodes without one; they count nowhere else.
      success: share in [0, 1]; None when n is 0.
      wilson_low: lower end of the 95 % Wilson interval.
      wilson_high: upper end.
      steps: mean environment steps; None when n is 0.
      tokens: mean generated tokens; None when n is 0.
      score: mean score in [0, 1]; None when n is 0.
      scenario_success: share of scenarios whose tasks were all solved (SGC); None without scenarios.
      scenarios: scenarios all of whose tasks have an outcome.
      use_rate: share that used a skill, of the episodes that were shown one; None when none was.
      used_success: share solved, of those that used one.
      library: mean size of the libraries; None without one.
    """

    split: str
    retrieval: bool
    family: str
    n: int
    failed: int
    success: float | None
    wilson_low: float
    wilson_high: float
    steps: float | None
    tokens: float | None
    score: float | None = None
    scenario_success: float | None = None
    scenarios: int | None = None
    use_rate: float | None = None
    used_success: float | None = None
    library: float | None = None


def wilson_interval(successes: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Returns the Wilson score interval of a share (Wilson 1927); (0, 1) when nothing was tried.

        centre = (p + z^2/2n) / (1 + z^2/n);   half = z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n)

    Raises:
      ValueError: not 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} tries cannot be")
    if n == 0:
        return 0.0, 1.0
    share, weight = successes / n, z * z / n
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / n + weight / (4 * n)) / (1 + weight)
    # At the ends the formula gives 0 and 1 exactly; rounding must not show 1e-17 instead.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def summarise(episodes: Iterable[EpisodeOutcome]) -> list[EvalRow]:
    """Returns one row per (split, retrieval, family) and one "all" row before each family block, in sorted order."""
    episodes = list(episodes)
    rows = []
    for split, retrieval in sorted({(episode.split, episode.retrieval) for episode in episodes}):
        block = [episode for episode in episodes if (episode.split, episode.retrieval) == (split, retrieval)]
        rows.append(_row(split, retrieval, ALL, block))
        for family in sorted({episode.family for episode in block}):
            rows.append(_row(split, retrieval, family, [episode for episode in block if episode.family == family]))
    return rows


def _row(split: str, retrieval: bool, family: str, episodes: Sequence[EpisodeOutcome]) -> EvalRow:
    done = [episode for episode in episodes if episode.success is not None]
    n, successes = len(done), sum(bool(episode.success) for episode in done)
    low, high = wilson_interval(successes, n)
    return EvalRow(
        split=split,
        retrieval=retrieval,
        family=family,
        n=n,
        failed=len(episodes) - n,
        success=successes / n if n else None,
        wilson_low=low,
        wilson_high=high,
        steps=sum(episode.steps for episode in done) / n if n else None,
        tokens=sum(episode.tokens for episode in done) / n if n else None,
        score=sum(_score(episode) for episode in done) / n if n else None,
        **_scenarios(episodes),
        **_use(done),
    )


def _scenarios(episodes: Sequence[EpisodeOutcome]) -> dict[str, float | int | None]:
    """Returns the values of scenarios; one with a lost task counts nowhere."""
    found: dict[str, list[EpisodeOutcome]] = {}
    for episode in episodes:
        if episode.scenario:
            found.setdefault(episode.scenario, []).append(episode)
    whole = [tasks for tasks in found.values() if all(task.success is not None for task in tasks)]
    solved = [all(task.success for task in tasks) for tasks in whole]
    sizes = [task.library for tasks in whole for task in tasks[:1] if task.library is not None]
    return {
        "scenario_success": _share(solved),
        "scenarios": len(whole) if found else None,
        "library": sum(sizes) / len(sizes) if sizes else None,
    }


def _use(done: Sequence[EpisodeOutcome]) -> dict[str, float | None]:
    shown = [episode for episode in done if episode.used is not None]
    using = [bool(episode.success) for episode in shown if episode.used]
    return {"use_rate": len(using) / len(shown) if shown else None, "used_success": _share(using)}


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def _score(episode: EpisodeOutcome) -> float:
    return float(bool(episode.success)) if episode.score is None else episode.score


def metrics_of(rows: Iterable[EvalRow]) -> dict[str, float]:
    """Returns the rows as metrics named eval/<split>/<family>/<with|without>_skills/..."""
    values: dict[str, float] = {}
    for row in rows:
        prefix = f"eval/{row.split}/{row.family}/{'with' if row.retrieval else 'without'}_skills"
        for name in METRICS_OF_A_ROW:
            value = getattr(row, name)
            if value is not None:
                values[f"{prefix}/{name}"] = float(value)
    return values


def write_rows(path: str | pathlib.Path, rows: Iterable[EvalRow]) -> None:
    """Writes an evaluation file, its folder too."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")


def read_rows(path: str | pathlib.Path) -> list[EvalRow]:
    """Reads an evaluation file.

    Raises:
      DataError: the file is missing or holds something else; names the file.
    """
    try:
        return [EvalRow(**row) for row in json.loads(pathlib.Path(path).read_text())]
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise DataError(f"{path} is no evaluation file: {error}") from error
