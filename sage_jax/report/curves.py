"""Curves of a run as SVG text that can stand inside a page."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from sage_jax.metrics.names import PHASES, REVIEW_OUTCOMES
from sage_jax.report.load import RunData


@dataclasses.dataclass(frozen=True)
class Chart:
    """One chart: a title and the metrics it draws. `prefix` adds every metric that begins so."""

    title: str
    unit: str
    metrics: tuple[str, ...] = ()
    prefix: str = ""
    stacked: bool = False


CHARTS: tuple[Chart, ...] = (
    Chart("Success while training", "share", ("reward/success",)),
    Chart("Reward", "reward", ("reward/mean", "reward/std")),
    Chart("Episode length", "steps", ("episode/steps",)),
    Chart(
        "Review outcomes", "share of review turns", tuple(f"review/{name}" for name in REVIEW_OUTCOMES), stacked=True
    ),
    Chart("Valid tool calls", "share", ("review/valid",)),
    Chart("Utility of accepted edits", "score", ("utility/mean",)),
    Chart("Edits with positive utility", "share", ("utility/positive_share",)),
    Chart("Probe episodes", "episodes", ("utility/probe_requested", "utility/probe_run", "utility/probe_saved")),
    Chart("Skills in the bank", "skills", ("bank/size",)),
    Chart("Groups left out", "groups", ("groups/total", "groups/no_spread", "groups/invalid")),
    Chart("Loss", "nats", ("loss/total", "loss/policy", "loss/kl")),
    Chart("Entropy", "nats", ("loss/entropy",)),
    Chart("Engine against learner", "nats", ("loss/engine_gap", "loss/engine_kl")),
    Chart("Engine against learner, largest", "nats", ("loss/engine_gap_max",)),
    Chart("Gradient norm", "1", ("update/grad_norm",)),
    Chart("Cold start", "nats per token, share", ("sft/loss", "sft/accuracy")),
    Chart("Time of a round", "s", tuple(f"time/{phase}" for phase in PHASES if phase != "env"), stacked=True),
    Chart("Tokens", "tokens", ("tokens/generated", "tokens/trained")),
    Chart(
        "Tokens of the engine",
        "tokens",
        tuple(f"engine/{name}_tokens" for name in ("generated", "prefilled", "cached")),
    ),
    Chart("How rollouts ended", "rollouts", prefix="status/", stacked=True),
)


def draw_charts(run: RunData, charts: Sequence[Chart] = CHARTS) -> list[tuple[str, str]]:
    """Returns (title, SVG) of every chart that has something to show."""
    drawn = []
    for chart in charts:
        names = [*chart.metrics, *(run.names(chart.prefix) if chart.prefix else ())]
        lines = {name: run.series(name) for name in names}
        lines = {name: line for name, line in lines.items() if line[0]}
        if lines:
            drawn.append((chart.title, _draw(chart, lines)))
    return drawn


def _draw(chart: Chart, lines: dict[str, tuple[list[int], list[float]]]) -> str:
    # The salt makes ids unique among the charts of a page and equal from one build to the next.
    with matplotlib.rc_context({"svg.hashsalt": chart.title, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(4.6, 2.5), layout="constrained")
        axes = figure.subplots()
        if chart.stacked:
            steps = sorted({step for line in lines.values() for step in line[0]})
            layers = [[dict(zip(*line, strict=True)).get(step, 0.0) for step in steps] for line in lines.values()]
            axes.stackplot(steps, layers, labels=[_label(name) for name in lines], alpha=0.8)
        else:
            for name, (steps, values) in lines.items():
                axes.plot(steps, values, label=_label(name), linewidth=1.2, marker="." if len(steps) < 30 else None)
        axes.set_xlabel("step")
        axes.set_ylabel(chart.unit)
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            figure.legend(fontsize=6, loc="outside right upper")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _label(name: str) -> str:
    return name.split("/", 1)[1].replace("_", " ")
