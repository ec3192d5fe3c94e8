"""What docs/results.md needs of a run folder: configuration, versions, evaluations, some metrics; kept as JSON."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sage_jax.errors import DataError
from sage_jax.metrics import EvalRow
from sage_jax.report.sweep import AFTER, SeedRun

LOCAL_KEYS = ("name", "run_dir", "cache")  # of a machine or a sweep, not of a result
KEPT = re.compile(
    r"step|reward/|eval/[^/]+/all/|review/|utility/|bank/|paired/|chain/|generation/|time/round|tokens/gen"
)


@dataclasses.dataclass(frozen=True)
class Record:
    """Finished runs of one sweep.

    Attributes:
      name: of the sweep; its files are called so.
      variants: in order, the baseline first.
      commands: (variant, seed) -> command line.
      runs: finished ones.
    """

    name: str
    variants: tuple[str, ...]
    commands: Mapping[tuple[str, int], str]
    runs: tuple[SeedRun, ...]

    def merge(self, other: Record) -> Record:
        """Returns this record with the runs of `other`, which replace those of the same variant and seed."""
        mine = {(run.variant, run.seed): run for run in self.runs}
        mine |= {(run.variant, run.seed): run for run in other.runs}
        variants = other.variants + tuple(name for name in self.variants if name not in other.variants)
        return Record(
            other.name, variants, {**self.commands, **other.commands}, tuple(mine[key] for key in sorted(mine))
        )

    def splits(self) -> list[str]:
        """Returns the splits that were evaluated, sorted."""
        return sorted({row.split for run in self.runs for row in run.evals[AFTER]})

    def only(self, names: Sequence[str]) -> Record:
        """Returns the record of some variants, in the order of `names`; without names, of all."""
        names = tuple(names) or self.variants
        return dataclasses.replace(self, variants=names, runs=tuple(r for r in self.runs if r.variant in names))


def write_record(path: pathlib.Path, record: Record) -> None:
    """Writes a record, its folder too; the same runs give the same bytes."""
    runs = [
        {
            "variant": run.variant,
            "seed": run.seed,
            "command": record.commands[run.variant, run.seed],
            "git": run.git,
            "versions": dict(run.versions),
            "config": {key: value for key, value in run.config.items() if key not in LOCAL_KEYS},
            "evals": {tag: [dataclasses.asdict(row) for row in rows] for tag, rows in run.evals.items()},
            "generations": dict(run.generations),
            "metrics": [{k: _short(v) for k, v in line.items() if KEPT.match(k)} for line in run.metrics],
        }
        for run in record.runs
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"name": record.name, "variants": record.variants}, indent=1)
    body = ",\n".join(json.dumps(run, sort_keys=True) for run in runs)
    path.write_text(f'{head[:-2]},\n "runs": [\n{body}\n]\n}}\n')


def read_record(path: pathlib.Path) -> Record:
    """Reads a record.

    Raises:
      DataError: the file is missing or holds something else; names it.
    """
    try:
        content = json.loads(path.read_text())
        runs = [
            SeedRun(
                variant=one["variant"],
                seed=one["seed"],
                evals={tag: [EvalRow(**row) for row in rows] for tag, rows in one["evals"].items()},
                metrics=one["metrics"],
                generations=one.get("generations", {}),
                git=one["git"],
                config=one["config"],
                versions=one["versions"],
            )
            for one in content["runs"]
        ]
        commands = {(one["variant"], one["seed"]): one["command"] for one in content["runs"]}
        return Record(content["name"], tuple(content["variants"]), commands, tuple(runs))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is no record of runs: {error}; `make results` writes it") from error


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
