"""Two policies review the same episodes."""

import dataclasses

import pytest

from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.report import report_reviews
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training.loop import train
from sage_jax.training.reviews import JudgedReview, judge_reviews


def test_start_and_checkpoint_review_the_same_episodes(tiny_folder, tiny_cache, tmp_path, capsys):
    run = tiny_settings(tmp_path, tiny_folder, tiny_cache, rounds=1, eval_episodes=3, temperature=1.0)
    train(run)
    judged = judge_reviews(run, probes=1)
    assert list(judged) == ["before", "after"]
    before, after = judged.values()
    games = [(review.task, review.success) for review in before]
    assert games == [(review.task, review.success) for review in after]
    assert len({task for task, _ in games}) == len(games) == 6  # of both splits, each game once
    assert {review.outcome for review in before + after} > {"added"}
    for review in before + after:
        assert review.text
        assert review.outcome in ("added", "updated") or review.utility == 0.0
    assert [review.text for review in before] != [review.text for review in after]  # the update did something

    capsys.readouterr()
    report_reviews(tmp_path, judged, title="reviews")
    printed = capsys.readouterr().out
    assert "95 % t interval, 6 episodes" in printed
    assert (tmp_path / "reviews.json").is_file()


def test_what_cannot_be_judged_is_refused(tiny_folder, tiny_cache, tmp_path):
    with pytest.raises(ConfigError, match="method='grpo' has no review turns"):
        judge_reviews(tiny_settings(tmp_path, tiny_folder, tiny_cache, method="grpo"), probes=1)
    with pytest.raises(CheckpointError, match="holds no checkpoint to judge"):
        judge_reviews(tiny_settings(tmp_path, tiny_folder, tiny_cache), probes=1)


def test_the_difference_is_paired_by_episode(capsys, tmp_path):
    kept = JudgedReview("a", True, "kept", 0.0, "keep")
    made = dataclasses.replace(kept, outcome="added", utility=0.5)
    lost = dataclasses.replace(made, utility=None)
    report_reviews(tmp_path, {"before": [kept, kept, kept, lost], "after": [made, made, kept, made]})
    printed = capsys.readouterr().out
    # Differences .5, .5, 0 (the fourth was not measured): mean 1/3, sd .2887, t(2) = 4.303: 1/3 -+ .717.
    assert "after minus before on the same episode: +0.333 [-0.384, +1.050] (95 % t interval, 3 episodes)" in printed
    report_reviews(tmp_path, {"before": [lost], "after": [made]})
    assert "too few to compare" in capsys.readouterr().out
