"""The table at the end of a run."""

import dataclasses
import io
import json

import pytest
import rich.console

from sage_jax.metrics import EpisodeOutcome, summarise
from sage_jax.report import compare, load_run, print_tables
from sage_jax.report.tables import cell_text, report_run


def test_before_stands_left_of_after_and_all_above_the_families(run_dir):
    (comparison,) = compare(load_run(run_dir).evals)
    assert comparison.columns == (("before", True), ("before", False), ("after", True), ("after", False))
    assert [family for family, _ in comparison.rows] == ["all", "cool", "heat"]
    before, _, after, _ = comparison.rows[0][1]
    assert (before.success, after.success) == (0.25, 0.75)


def test_each_split_is_a_table_of_its_own_and_gaps_are_dashes():
    seen = summarise([EpisodeOutcome("seen", True, "heat", True, 5, 50)])
    unseen = summarise([EpisodeOutcome("unseen", True, "cool", False, 9, 90)])
    also = summarise([EpisodeOutcome("seen", True, "cool", False, 9, 90)])
    first, second = compare({"before": [*seen, *unseen], "after": also})
    assert (first.split, second.split) == ("seen", "unseen")
    assert second.columns == (("before", True),)
    cells = dict(first.rows)
    assert cell_text(cells["heat"][1]) == ("-", "")
    assert cell_text(cells["heat"][0]) == ("100 % (21-100)", "5.0 steps, 50 tok")


def test_a_score_is_shown_where_it_is_not_the_success():
    won, half = (EpisodeOutcome("test", False, "beauty", s == 1.0, 5, 50, s) for s in (1.0, 0.5))
    assert cell_text(summarise([won, half])[0])[0] == "50 % (9-91), score 75"
    assert cell_text(summarise([won])[0])[0] == "100 % (21-100)"


def test_infrastructure_failures_are_shown_and_not_counted():
    (row, _) = summarise([EpisodeOutcome("seen", True, "heat", None, 0, 0)])
    assert cell_text(row) == ("-", "n 0, 1 failed")


def test_printed_without_a_terminal_no_cell_is_cut(run_dir):
    stream = io.StringIO()
    print_tables(load_run(run_dir).evals, title="twin", console=rich.console.Console(file=stream, width=60))
    text = stream.getvalue()
    assert text.count("11.5 steps, 100 tok") == 12
    assert "twin valid_unseen" in text
    assert "…" not in text


@pytest.mark.parametrize("terminal", [False, True])
def test_five_columns_of_long_cells_are_shown_whole(terminal):
    (row, *_) = summarise([EpisodeOutcome("test_normal", True, "contact_count", True, 5, 50, 0.75)])
    row = dataclasses.replace(row, scenario_success=0.5, use_rate=0.875, used_success=0.625)
    evals = {name: [row, dataclasses.replace(row, retrieval=False)] for name in ("before", "grpo", "after")}
    stream = io.StringIO()
    print_tables(
        evals, console=rich.console.Console(file=stream, width=120, force_terminal=terminal, color_system=None)
    )
    text = stream.getvalue()
    assert "…" not in text
    assert text.count("SGC") == text.count("used") == text.count("(62)") == 6
    assert ("100 % (21-100), score 75, SGC 50" in text) is not terminal  # wrapped in a terminal that is too narrow


def test_a_run_with_generations_has_their_table(run_dir, capsys):
    point = lambda g, reward: {"generation": g, "reward": reward, "solved": 1.0}  # noqa: E731
    (run_dir / "generations").mkdir()
    (run_dir / "generations" / "before.json").write_text(json.dumps({"test": [point(0, 0.125)]}))
    (run_dir / "generations" / "after.json").write_text(json.dumps({"test": [point(0, 0.25), point(1, 0.5)]}))
    report_run(run_dir, ("before", "after"), title="twin")
    shown = [line.split() for line in capsys.readouterr().out.partition("by generation")[2].splitlines()]
    assert ["0", "12", "%", "100", "%", "25", "%", "100", "%"] in shown
    assert ["1", "-", "-", "50", "%", "100", "%"] in shown
