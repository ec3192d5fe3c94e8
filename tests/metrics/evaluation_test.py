"""Evaluation rows and the Wilson interval."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_jax.errors import DataError
from sage_jax.metrics import EpisodeOutcome, check_names, metrics_of, read_rows, summarise, wilson_interval, write_rows
from sage_jax.metrics.evaluation import Z_95

COUNTS = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_worked_case():
    # 8 of 10: z^2 = 3.841459; centre = (0.8 + 0.192073) / 1.384146 = 0.716740;
    # half = 1.959964 * sqrt(0.8 * 0.2 / 10 + 3.841459 / 400) / 1.384146 = 1.959964 * 0.1600228 / 1.384146 = 0.226589
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.490162, abs=2e-5)
    assert high == pytest.approx(0.943318, abs=2e-5)


@given(COUNTS)
def test_ends_are_where_the_score_test_is_just_accepted(counts):
    successes, n = counts
    share = successes / n
    for end in wilson_interval(successes, n):
        if 0 < end < 1:
            # |p_hat - p| = z sqrt(p (1 - p) / n) defines the ends.
            assert abs(share - end) == pytest.approx(Z_95 * math.sqrt(end * (1 - end) / n), rel=1e-6, abs=1e-9)
        else:
            assert share == end


@given(COUNTS)
def test_interval_holds_the_share_and_mirrors(counts):
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    mirrored = wilson_interval(n - successes, n)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_scores_are_averaged_over_what_was_played_and_default_to_success():
    parts = [EpisodeOutcome("test", False, "beauty", s == 1.0, 5, 50, s) for s in (1.0, 0.5, 0.25)]
    row = summarise([*parts, EpisodeOutcome("test", False, "beauty", None, 0, 0, 0.9)])[0]
    assert (row.score, row.success) == (pytest.approx(1.75 / 3), pytest.approx(1 / 3))
    assert metrics_of([row])["eval/test/all/without_skills/score"] == row.score
    plain = summarise([EpisodeOutcome("seen", True, "heat", won, 1, 1) for won in (True, False)])[0]
    assert plain.score == plain.success == 0.5
    assert summarise([EpisodeOutcome("seen", True, "heat", None, 1, 1)])[0].score is None


def test_nothing_tried_says_nothing_and_nonsense_is_refused():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson_interval(3, 2)


EPISODES = [
    EpisodeOutcome("seen", True, "heat", True, 10, 100),
    EpisodeOutcome("seen", True, "heat", False, 30, 300),
    EpisodeOutcome("seen", True, "cool", True, 20, 200),
    EpisodeOutcome("seen", True, "cool", None, 7, 70),
    EpisodeOutcome("seen", False, "heat", False, 50, 500),
    EpisodeOutcome("unseen", False, "heat", None, 1, 1),
]


def test_summary_by_hand():
    rows = {(row.split, row.retrieval, row.family): row for row in summarise(EPISODES)}
    assert list(rows) == [
        ("seen", False, "all"),
        ("seen", False, "heat"),
        ("seen", True, "all"),
        ("seen", True, "cool"),
        ("seen", True, "heat"),
        ("unseen", False, "all"),
        ("unseen", False, "heat"),
    ]
    whole = rows["seen", True, "all"]
    assert (whole.n, whole.failed, whole.success, whole.steps, whole.tokens) == (3, 1, 2 / 3, 20.0, 200.0)
    assert (whole.wilson_low, whole.wilson_high) == wilson_interval(2, 3)
    lost = rows["unseen", False, "all"]
    assert (lost.n, lost.failed, lost.success, lost.steps) == (0, 1, None, None)


@given(st.permutations(EPISODES))
def test_order_of_episodes_does_not_matter(episodes):
    assert summarise(episodes) == summarise(EPISODES)


def test_rows_as_metrics_have_known_names():
    values = metrics_of(summarise(EPISODES))
    check_names(values)
    assert values["eval/seen/all/with_skills/success"] == 2 / 3
    assert values["eval/seen/heat/without_skills/steps"] == 50.0
    assert "eval/unseen/all/without_skills/success" not in values
    assert values["eval/unseen/all/without_skills/failed"] == 1.0


def test_file_comes_back(tmp_path):
    path = tmp_path / "eval" / "before.json"
    write_rows(path, summarise(EPISODES))
    assert read_rows(path) == summarise(EPISODES)
    assert set(json.loads(path.read_text())[0]) >= {"split", "retrieval", "family", "n", "success", "wilson_low"}


@pytest.mark.parametrize("text", ["{", "[1]", '[{"split": "seen"}]', "7"])
def test_broken_file_is_named(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"bad\.json is no evaluation file"):
        read_rows(path)
