"""Episode rewards: won, lost, ended by a turn, and no reward at all."""

import pytest

from sage_jax.rewards import OutcomeConfig, outcome_reward
from sage_jax.types import Status


@pytest.mark.parametrize(
    ("won", "status", "value"), [(True, Status.OK, 10.0), (False, Status.OK, 0.0), (False, Status.TRUNCATED, 0.0)]
)
def test_won_and_lost(won, status, value):
    reward = outcome_reward(won=won, status=status)
    assert (reward.value, reward.status, reward.parts) == (value, status, {"won": value})


@pytest.mark.parametrize("status", [Status.ENV_ERROR, Status.ENGINE_ERROR, Status.TIMEOUT])
@pytest.mark.parametrize("ended", [True, False])
def test_a_failure_of_ours_is_no_reward(status, ended):
    reward = outcome_reward(won=False, status=status, ended_by_turn=ended)
    assert (reward.value, reward.status) == (None, status)


def test_an_episode_ended_by_a_turn():
    assert outcome_reward(won=False, status=Status.OK, ended_by_turn=True).value == -1.0


def test_a_score_is_paid_in_parts_and_to_episodes_that_were_not_won():
    config = OutcomeConfig(kind="score", scale=4.0)
    half = outcome_reward(won=False, score=0.5, status=Status.OK, config=config)
    assert (half.value, half.parts) == (2.0, {"score": 2.0})
    assert outcome_reward(won=True, score=1.0, status=Status.OK, config=config).value == 4.0
    assert outcome_reward(won=False, score=0.5, status=Status.OK).value == 0.0
    assert outcome_reward(won=False, score=0.5, status=Status.TIMEOUT, config=config).value is None
    assert outcome_reward(won=False, score=0.5, status=Status.OK, ended_by_turn=True, config=config).value == -1.0


def test_the_amounts_are_config():
    config = OutcomeConfig(scale=1.0, ended_by_turn=-0.2)
    assert outcome_reward(won=True, status=Status.OK, config=config).value == 1.0
    assert outcome_reward(won=False, status=Status.OK, ended_by_turn=True, config=config).value == -0.2
