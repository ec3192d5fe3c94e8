"""The cold start on real expert episodes."""

import dataclasses
import random

import jax
import numpy as np
import pytest

from sage_jax.data.sft_sets import write_jsonl
from sage_jax.errors import ConfigError, DataError
from sage_jax.testing.tiny import lesson
from sage_jax.training.cold_start import cold_start


def with_settings(session, group, **values):
    settings = session.settings
    changed = dataclasses.replace(getattr(settings, group), **values)
    return dataclasses.replace(session, settings=dataclasses.replace(settings, **{group: changed}))


def test_expert_episodes_move_the_parameters_and_leave_the_model_loaded(tiny_session):
    before = [np.array(leaf) for leaf in jax.tree.leaves(tiny_session.params)]
    params, metrics = cold_start(tiny_session)
    again, same = cold_start(tiny_session)
    assert set(metrics) == {"sft/loss", "sft/accuracy"}
    assert metrics == same
    assert 0 < metrics["sft/accuracy"] < 1
    for old, kept, new, repeated in zip(
        before, *(jax.tree.leaves(tree) for tree in (tiny_session.params, params, again)), strict=True
    ):
        np.testing.assert_array_equal(old, kept)
        np.testing.assert_array_equal(new, repeated)
    assert any(not np.array_equal(a, b) for a, b in zip(before, jax.tree.leaves(params), strict=True))


@pytest.mark.slow
def test_more_epochs_imitate_better(tiny_session):
    few = cold_start(with_settings(tiny_session, "sft", sft_epochs=2, sft_lr=1e-2))[1]
    many = cold_start(with_settings(tiny_session, "sft", sft_epochs=30, sft_lr=1e-2))[1]
    assert many["sft/loss"] < 0.5 * few["sft/loss"]
    assert many["sft/accuracy"] > few["sft/accuracy"]


def test_a_set_on_disk_takes_the_experts_place(tiny_session, tmp_path):
    rng = random.Random(0)
    write_jsonl(tmp_path / "set.jsonl", [lesson(rng) for _ in range(5)])
    own = {"sft_data": str(tmp_path / "set.jsonl"), "sft_episodes": 0, "sft_epochs": 2, "sft_lr": 1e-3}
    session = with_settings(tiny_session, "sft", **own)
    params, metrics = cold_start(session)
    again, same = cold_start(session)
    assert 0 < metrics["sft/loss"] == same["sft/loss"]
    trees = [jax.tree.leaves(tree) for tree in (tiny_session.params, params, again)]
    for new, repeated in zip(*trees[1:], strict=True):
        np.testing.assert_array_equal(new, repeated)
    assert any(np.any(old != new) for old, new in zip(*trees[:2], strict=True))


def test_a_set_with_a_conversation_longer_than_a_row_is_refused(tiny_session, tmp_path):
    write_jsonl(tmp_path / "set.jsonl", [[("user", "look " * 600, False), ("assistant", "look", True)]])
    with pytest.raises(DataError, match="1 of 1 sequences are longer than row_length=512"):
        cold_start(with_settings(tiny_session, "sft", sft_data=str(tmp_path / "set.jsonl")))


def test_no_episodes_is_no_cold_start(tiny_session):
    params, metrics = cold_start(with_settings(tiny_session, "sft", sft_episodes=0))
    assert params is tiny_session.params
    assert metrics == {}


def test_an_expert_without_enough_steps_is_named(tiny_session):
    with pytest.raises(DataError, match="max_steps=1"):
        cold_start(with_settings(tiny_session, "agent", max_steps=1))


def test_rows_too_short_for_any_episode_are_named(tiny_session):
    with pytest.raises(ConfigError, match="row_length=64: the shortest expert episode has"):
        cold_start(with_settings(tiny_session, "engine", row_length=64, max_length=64))


def test_without_training_tasks_nothing_can_be_imitated(tiny_session):
    with pytest.raises(DataError, match="sft_episodes=0"):
        cold_start(dataclasses.replace(tiny_session, tasks={"train": ()}))
