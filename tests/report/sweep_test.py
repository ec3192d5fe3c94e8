"""Statistics over seeds, against numbers worked by hand."""

import json

import pytest

from sage_jax.errors import DataError
from sage_jax.metrics import EpisodeOutcome, EvalRow, summarise, write_rows
from sage_jax.report import sweep
from sage_jax.report.sweep import Paired, SeedRun, Spread
from sage_jax.report.sweep_page import Planned, paired_text, spread_text, write_sweep_page


def row(success, *, retrieval=False, split="unseen", family="all", steps=10.0, tokens=100.0):
    return EvalRow(split, retrieval, family, 8, 0, success, 0.0, 1.0, steps, tokens)


def run(variant, seed, before, after, *, metrics=(), git="abc"):
    return SeedRun(variant, seed, {"before": before, "after": after}, list(metrics), git)


@pytest.fixture
def runs():
    # The method's bank holds skills in seeds 0 and 1; seed 2 kept none, so it has no row with skills.
    method = [
        run("method", 0, [row(0.1)], [row(0.2, retrieval=True, steps=8.0), row(0.3)]),
        run("method", 1, [row(0.2)], [row(0.4, retrieval=True, steps=9.0), row(0.1)]),
        run("method", 2, [row(0.3)], [row(0.6, steps=13.0)]),
    ]
    return [*method, run("plain", 0, [row(0.1)], [row(0.1)]), run("plain", 2, [row(0.3)], [row(0.2)])]


def test_spread_is_the_sample_standard_deviation():
    # mean (2 + 4 + 9) / 3 = 5; deviations -3, -1, 4: (9 + 1 + 16) / 2 = 13
    assert sweep.spread([2, 4, 9]) == Spread(3, 5.0, pytest.approx(13**0.5))
    assert sweep.spread([2]) == Spread(1, 2.0, None)
    assert sweep.spread([]) == Spread(0, None, None)


def test_t_interval():
    # mean 0.4, sd 0.2, n 3; t of 2 degrees at 97.5 % is 4.302653 (table): half 4.302653 * 0.2 / sqrt(3) = 0.496828
    assert sweep.t_interval([0.2, 0.4, 0.6]) == pytest.approx((-0.096828, 0.896828), abs=1e-6)
    # n 2: t of 1 degree is 12.706205, sd of (0, 2) is sqrt(2): half 12.706205
    assert sweep.t_interval([0.0, 2.0]) == pytest.approx((1 - 12.706205, 1 + 12.706205), abs=1e-5)
    # at 90 %, t of 2 degrees is 2.919986
    low, high = sweep.t_interval([0.2, 0.4, 0.6], confidence=0.9)
    assert high - low == pytest.approx(2 * 2.919986 * 0.2 / 3**0.5, abs=1e-6)
    with pytest.raises(ValueError, match="two values"):
        sweep.t_interval([1.0])


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3], 2 / 8),  # only +++ and --- reach 6
        ([3, 2, -1], 4 / 8),  # sums 6, 4, 2, 0 and their mirrors: 4 of 8 are at least 4
        ([1, 1, 1, 1, 1], 2 / 32),
        ([1, -1], 1.0),  # the observed sum is 0
        ([2, 0], 1.0),  # a zero is no evidence: all four sums are +-2
        ([0.5], 1.0),
        ([0.1, 0.2, 0.3], 2 / 8),  # 0.1 + 0.2 is not 0.3 in binary: rounding must not change a count
        ([0.1, 0.2, -0.3], 1.0),
    ],
)
def test_sign_flip(differences, p):
    assert sweep.sign_flip_p(differences) == p


def test_sign_flip_does_not_depend_on_order_or_side():
    values = [0.3, -0.1, 0.25, 0.4, -0.05]
    p = sweep.sign_flip_p(values)
    assert sweep.sign_flip_p(values[::-1]) == p
    assert sweep.sign_flip_p([-value for value in values]) == p
    for wrong in ([], [0.1] * 21):
        with pytest.raises(ValueError, match="tested exactly"):
            sweep.sign_flip_p(wrong)


def test_pairs_are_of_the_seeds_both_have():
    # seeds 1 and 3 are shared: differences 0.2 and 0.4, mean 0.3, sd 0.141421, half 12.706205 * 0.1 = 1.270620
    got = sweep.paired({1: 0.5, 2: 0.9, 3: 0.8}, {1: 0.3, 3: 0.4, 4: 0.0})
    assert (got.n, got.p) == (2, 0.5)
    assert (got.mean, got.low, got.high) == pytest.approx((0.3, 0.3 - 1.2706205, 0.3 + 1.2706205), abs=1e-6)
    assert sweep.paired({1: 0.5}, {1: 0.25}) == Paired(1, 0.25, None, None, 1.0)
    assert sweep.paired({1: 0.5}, {2: 0.25}) == Paired(0, None, None, None, None)


def test_more_pairs_than_can_be_counted_have_an_interval_and_no_p():
    values = {seed: float(seed % 3) for seed in range(25)}
    got = sweep.paired(values, dict.fromkeys(values, 0.0))
    assert (got.n, got.p) == (25, None)
    assert got.low < got.mean < got.high


def test_the_own_bank_is_used_where_there_is_one(runs):
    values = [
        [sweep.value_of(one, "after", "unseen", condition, "success") for condition in sweep.CONDITIONS]
        for one in runs[:3]
    ]
    assert values == [[0.2, 0.2, 0.3], [0.4, 0.4, 0.1], [0.6, None, 0.6]]


def test_only_the_row_of_all_families_counts():
    one = run("v", 0, [], [row(1.0, family="heat"), row(0.25)])
    assert sweep.value_of(one, "after", "unseen", "without skills", "success") == 0.25
    assert sweep.value_of(one, "after", "seen", "without skills", "success") is None
    assert sweep.value_of(one, "other", "unseen", "without skills", "success") is None


def test_cells_compare_with_the_first_variant_by_seed(runs):
    cells = {(cell.condition, cell.variant): cell for cell in sweep.summarise_sweep(runs, ["method", "plain"])}
    method, plain = cells["own bank", "method"], cells["own bank", "plain"]
    assert method.values == (0.2, 0.4, 0.6)
    assert (method.success.mean, method.success.sd) == pytest.approx((0.4, 0.2))
    assert method.steps.mean == pytest.approx((8 + 9 + 13) / 3)
    assert method.before.mean == pytest.approx(0.2)
    assert method.gain.mean == pytest.approx(0.2)  # (0.1 + 0.2 + 0.3) / 3
    assert method.gain.p == 0.25
    assert method.difference is None
    # plain has seeds 0 and 2: 0.1 - 0.2 and 0.2 - 0.6, mean -0.25
    assert (plain.seeds, plain.difference.n) == ((0, 2), 2)
    assert plain.difference.mean == pytest.approx(-0.25)


def test_a_condition_without_rows_has_no_cell(runs):
    cells = sweep.summarise_sweep(runs, ["method", "plain"])
    with_skills = [cell for cell in cells if cell.condition == "with skills"]
    assert [(cell.variant, cell.seeds) for cell in with_skills] == [("method", (0, 1))]
    # Before training the bank was empty, so the start is the evaluation without skills.
    assert with_skills[0].before.mean == pytest.approx(0.15)
    assert with_skills[0].gain.mean == pytest.approx(0.15)  # 0.2 - 0.1 and 0.4 - 0.2


def test_a_split_whose_episodes_all_failed_is_left_out():
    outcomes = [EpisodeOutcome("unseen", False, "heat", None, 0, 0), EpisodeOutcome("seen", False, "heat", True, 3, 30)]
    cells = sweep.summarise_sweep([run("v", 0, [], summarise(outcomes))], ["v"])
    assert {cell.split for cell in cells} == {"seen"}


def test_curves_average_over_a_window_and_then_over_seeds():
    lines = [
        [{"step": 1, "m": 0.0}, {"step": 2, "m": 0.4}, {"step": 3, "m": 0.8}, {"step": 4, "m": 1.0}],
        [{"step": 1, "m": 0.2}, {"step": 2, "m": 0.2}, {"step": 2, "m": 0.6}, {"step": 3, "m": None, "x": 1}],
    ]
    runs = [run("v", seed, [], [], metrics=one) for seed, one in enumerate(lines)]
    # windows of 2: seed 0 gives 0.0, 0.2, 0.6, 0.9; seed 1 (its second line for round 2 counts) gives 0.2, 0.4
    (steps, mean, low, high) = sweep.curves(runs, ["v", "w"], ["m"], window=2)["v"]
    assert steps == [1, 2]
    assert mean == pytest.approx([0.1, 0.3])
    assert low == pytest.approx([0.0, 0.2])
    assert high == pytest.approx([0.2, 0.4])
    assert sweep.curves(runs, ["v"], ["absent"]) == {}


def test_a_curve_takes_the_first_metric_that_a_line_holds():
    own = [run("v", 0, [], [], metrics=[{"step": 0, "without": 0.1}, {"step": 4, "with": 0.5, "without": 0.3}])]
    empty_bank = [run("v", 1, [], [], metrics=[{"step": 0, "without": 0.2}, {"step": 4, "without": 0.4}])]
    got = sweep.curves([*own, *empty_bank], ["v"], ["with", "without"])["v"]
    assert got == ([0, 4], pytest.approx([0.15, 0.45]), [0.1, 0.4], [0.2, 0.5])
    # Only seed 0 ever has the metric: the other is left out rather than emptying the curve.
    assert sweep.curves([*own, *empty_bank], ["v"], ["with"])["v"] == ([4], [0.5], [0.5], [0.5])


def test_costs_are_sums_over_rounds():
    lines = [{"step": 1, "tokens/generated": 100.0}, {"step": 2, "tokens/generated": 50.0, "utility/probe_run": 4.0}]
    runs = [run("v", 0, [], [], metrics=lines), run("v", 1, [], [], metrics=lines[:1])]
    found = sweep.costs(runs, ["v"])["v"]
    assert found["tokens/generated"] == Spread(2, 125.0, pytest.approx(1250**0.5))
    assert found["utility/probe_run"].mean == 2.0


def test_a_run_is_read_from_its_folder(tmp_path):
    assert sweep.read_run("v", 0, tmp_path) is None
    write_rows(tmp_path / "eval/before.json", [row(0.1)])
    assert sweep.read_run("v", 0, tmp_path) is None
    write_rows(tmp_path / "eval/after.json", [row(0.5)])
    assert sweep.read_run("v", 0, tmp_path) == SeedRun("v", 0, {"before": [row(0.1)], "after": [row(0.5)]}, [], None)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "starts.jsonl").write_text('{"git": "old"}\n{"git": "new"}\n')
    found = sweep.read_run("v", 0, tmp_path)
    assert (found.metrics, found.git) == ([{"step": 1}], "new")
    (tmp_path / "eval/after.json").write_text("{")
    with pytest.raises(DataError, match="after.json"):
        sweep.read_run("v", 0, tmp_path)


def test_numbers_as_text():
    assert spread_text(Spread(3, 0.4, 0.058), 100) == "40.0 ± 5.8"
    assert spread_text(Spread(1, 12.0, None)) == "12.0"
    assert spread_text(Spread(0, None, None)) == "-"
    assert paired_text(Paired(3, 0.12, -0.031, 0.271, 0.25)) == "+12.0 [-3.1, +27.1] p 0.25, n 3"
    assert paired_text(Paired(1, -0.12, None, None, 1.0)) == "-12.0 p 1, n 1"
    assert paired_text(None) == paired_text(Paired(0, None, None, None, None)) == "-"


def test_the_page_holds_tables_figure_commands_and_what_is_missing(runs, tmp_path):
    curve = [{"step": step, "reward/success": step / 10} for step in range(4)]
    runs = [SeedRun(one.variant, one.seed, one.evals, curve, one.git) for one in runs]
    planned = [Planned(one.variant, one.seed, f"python -m x --seed={one.seed}") for one in runs]
    planned.append(Planned("plain", 1, "python -m x --seed=1", "exit 1: it broke"))
    page = write_sweep_page(tmp_path, "demo", runs, planned, ["method", "plain"])
    text = page.read_text()
    assert "5 of 6 runs" in text
    assert "## unseen, own bank" in text
    assert (
        "| method | 3 | 20.0 ± 10.0 | 40.0 ± 20.0 | +20.0 [-4.8, +44.8] p 0.25, n 3 | - | 10.0 ± 2.6 | 100 ± 0 |"
        in text
    )
    assert "- plain, seed 1: exit 1: it broke" in text
    assert text.count("    python -m x --seed=") == 6
    assert "Code: abc." in text
    assert (tmp_path / "success.svg").read_text().count("<svg") == 1
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["baseline"] == "method"
    assert document["cells"][1]["difference"]["mean"] == pytest.approx(-0.25)
    assert document["curves"]["rollouts of training"]["plain"][0] == [0, 1, 2, 3]
    first = page.read_bytes(), (tmp_path / "success.svg").read_bytes()
    write_sweep_page(tmp_path, "demo", runs, planned, ["method", "plain"])
    assert first == (page.read_bytes(), (tmp_path / "success.svg").read_bytes())


def test_runs_of_different_code_are_pointed_out(tmp_path):
    runs = [run("v", seed, [row(0.1)], [row(0.2)], git=f"revision{seed}") for seed in range(2)]
    text = write_sweep_page(tmp_path, "demo", runs, [], ["v"]).read_text()
    assert "revision0, revision1. The runs do not share a revision" in text
    assert "success.svg" not in text


def test_a_page_of_no_runs_says_so(tmp_path):
    planned = [Planned("v", 0, "python -m x", "not finished")]
    text = write_sweep_page(tmp_path, "demo", [], planned, ["v"]).read_text()
    assert "0 of 1 runs" in text
    assert "- v, seed 0: not finished" in text
