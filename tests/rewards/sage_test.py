import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import ConfigError, RewardError
from sage_jax.losses.advantages import group_advantages
from sage_jax.rewards import SageRewardConfig, TaskOutcome, chain_group, chain_rewards
from sage_jax.types import Status

FIRST = frozenset({0})


def rewards(*outcomes: TaskOutcome, **config) -> list[float | None]:
    return [result.value for result in chain_rewards(outcomes, SageRewardConfig(**config))]


# R1 = r1 + 1[r1=1] 1[r2=1] 1[used], R2 = r2 + 1[r2=1] 1[used], by hand, all eight branches.
@pytest.mark.parametrize(
    ("r1", "r2", "used", "expected"),
    [
        (True, True, True, [2.0, 2.0]),  # 1 + 1, 1 + 1
        (True, True, False, [1.0, 1.0]),
        (True, False, True, [1.0, 0.0]),  # the skill was used in vain
        (True, False, False, [1.0, 0.0]),
        (False, True, True, [0.0, 2.0]),  # a skill of a failed task helped: paid to its user only
        (False, True, False, [0.0, 1.0]),
        (False, False, True, [0.0, 0.0]),
        (False, False, False, [0.0, 0.0]),
    ],
)
def test_the_two_equations(r1: bool, r2: bool, used: bool, expected: list[float]):
    second = TaskOutcome(r2, used=FIRST if used else frozenset())
    assert rewards(TaskOutcome(r1), second) == expected


def test_against_an_independent_reading():
    for r1, r2, used in itertools.product((0, 1), repeat=3):
        first = float(r1 + (r1 == 1) * (r2 == 1) * used)
        second = float(r2 + (r2 == 1) * used)
        outcomes = TaskOutcome(bool(r1)), TaskOutcome(bool(r2), used=FIRST if used else frozenset())
        assert rewards(*outcomes) == [first, second]


def test_a_turn_without_code_costs_one_and_earns_no_bonus():
    assert rewards(TaskOutcome(False, no_code=True), TaskOutcome(True, used=FIRST)) == [-1.0, 2.0]
    assert rewards(TaskOutcome(True), TaskOutcome(False, no_code=True, used=FIRST)) == [1.0, -1.0]
    # Whatever the environment says: the turn ended the episode before.
    assert rewards(TaskOutcome(True, no_code=True), TaskOutcome(True, used=FIRST)) == [-1.0, 2.0]


def test_a_failure_is_no_reward():
    broken = TaskOutcome(False, status=Status.ENV_ERROR)
    results = chain_rewards([TaskOutcome(True), broken])
    assert [(r.value, r.status) for r in results] == [(None, Status.ENV_ERROR)] * 2  # a bonus may have been due
    assert rewards(TaskOutcome(False), broken) == [0.0, None]  # none could be
    assert rewards(broken, TaskOutcome(True)) == [None, 1.0]
    # In a chain of three the bonus is certain once one later task has earned it.
    assert rewards(TaskOutcome(True), TaskOutcome(True, used=FIRST), broken) == [2.0, None, None]


def test_out_of_turns_is_a_loss():
    assert rewards(TaskOutcome(False, status=Status.TRUNCATED), TaskOutcome(True)) == [0.0, 1.0]


def test_longer_chains_pay_each_side_once():
    chain = [TaskOutcome(True), TaskOutcome(True, used=FIRST), TaskOutcome(True, used=frozenset({0, 1}))]
    assert rewards(*chain) == [2.0, 3.0, 2.0]
    assert chain_rewards(chain)[1].parts == {"outcome": 1.0, "made": 1.0, "used": 1.0}


def test_ablations():
    chain = [TaskOutcome(True), TaskOutcome(True, used=FIRST)]
    assert rewards(*chain, kind="outcome") == [1.0, 1.0]
    assert rewards(*chain, kind="chain") == [1.0, 1.0]
    assert rewards(TaskOutcome(True), TaskOutcome(False), kind="chain") == [0.5, 0.5]
    assert rewards(TaskOutcome(True), TaskOutcome(False, no_code=True), kind="chain") == [0.0, 0.0]
    assert rewards(TaskOutcome(True), TaskOutcome(False, status=Status.TIMEOUT), kind="chain") == [None, None]


def test_partial_credit_gives_no_bonus():
    chain = TaskOutcome(False, score=0.75), TaskOutcome(True, score=1.0, used=FIRST)
    assert rewards(*chain) == [0.0, 2.0]
    assert rewards(*chain, partial=True) == [0.75, 2.0]
    assert rewards(TaskOutcome(True, score=1.0), TaskOutcome(False, score=0.5, used=FIRST), partial=True) == [1.0, 0.5]


def test_the_bonus_is_a_setting():
    assert rewards(TaskOutcome(True), TaskOutcome(True, used=FIRST), bonus=0.25) == [1.25, 1.25]


@pytest.mark.parametrize("used", [{0}, {1}, {-1}])
def test_a_task_cannot_use_what_is_not_made_yet(used: set[int]):
    with pytest.raises(RewardError, match="task 0"):
        chain_rewards([TaskOutcome(True, used=frozenset(used))])


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="skill, outcome, chain"):
        SageRewardConfig(kind="skils")


CHAINS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.floats(-1, 3, allow_nan=False)), min_size=1, max_size=40
)


@settings(deadline=None, max_examples=60)
@given(CHAINS)
def test_statistics_never_mix_chains_or_positions(samples: list[tuple[str, int, float]]):
    """Each (chain, position) is centred by itself: equal to centring it alone, whatever else is in the batch."""
    groups = np.array([chain_group(chain, position) for chain, position, _ in samples])
    values = np.array([value for _, _, value in samples])
    advantages, _ = group_advantages(values, groups, kind="mean")
    for chain, position, _ in samples:
        mine = np.array([(c, p) == (chain, position) for c, p, _ in samples])
        np.testing.assert_allclose(advantages[mine], values[mine] - values[mine].mean(), atol=1e-6)


def test_names_of_groups_do_not_meet():
    assert chain_group("a#1", 1) != chain_group("a", 11)
    assert len({chain_group(chain, place) for chain in ("a", "a#1", "b") for place in range(3)}) == 9
