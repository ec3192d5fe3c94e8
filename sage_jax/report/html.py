"""A run folder as one self-contained page: no script, no font and no picture from elsewhere."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from sage_jax.report.curves import draw_charts
from sage_jax.report.load import RunData, load_run
from sage_jax.report.tables import cell_text, column_title, compare
from sage_jax.skills import BankEdit

MAX_TRAJECTORIES = 4


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The life of one skill: every edit that touched it, oldest first."""

    skill_id: str
    edits: tuple[BankEdit, ...]

    @property
    def present(self) -> bool:
        """Whether the skill is still in the bank."""
        return self.edits[-1].after is not None


def write_report(run_dir: str | pathlib.Path) -> pathlib.Path:
    """Writes report.html into a run folder; returns its path. Raises: as `load_run`."""
    run = load_run(run_dir)
    path = run.folder / "report.html"
    path.write_text(render(run), encoding="utf-8")
    return path


def render(run: RunData) -> str:
    """Returns the page of a run."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    return environment.get_template("page.html.j2").render(
        run=run,
        name=run.config.get("name", run.folder.name),
        start=run.starts[-1] if run.starts else None,
        comparisons=compare(run.evals),
        column_title=column_title,
        cell_text=cell_text,
        charts=[(title, Markup(svg)) for title, svg in draw_charts(run)],
        lineages=lineages(run.edits),
        trajectories=choose_trajectories(run.trajectories),
    )


def lineages(edits: Sequence[BankEdit]) -> list[Lineage]:
    """Returns the skills in order of their first edit, each with its whole history."""
    by_id: dict[str, list[BankEdit]] = {}
    for edit in edits:
        skill = edit.after or edit.before
        if skill is not None:
            by_id.setdefault(skill.id, []).append(edit)
    return [Lineage(skill_id, tuple(history)) for skill_id, history in by_id.items()]


def choose_trajectories(records: Sequence[dict[str, Any]], count: int = MAX_TRAJECTORIES) -> list[dict[str, Any]]:
    """Returns a few trajectories worth reading: the best and the worst of the groups that differ most."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["reward"]["value"] is not None:
            groups.setdefault(record["group"], []).append(record)
    ordered = [sorted(group, key=lambda record: record["reward"]["value"]) for group in groups.values()]
    ordered.sort(key=lambda group: group[0]["reward"]["value"] - group[-1]["reward"]["value"])
    chosen: list[dict[str, Any]] = []
    for group in ordered:
        chosen.extend([group[-1], group[0]] if len(group) > 1 else group)
    return chosen[:count]
