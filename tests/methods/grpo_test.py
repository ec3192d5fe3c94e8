"""Advantages of whole turns, worked by hand, and what a round of GRPO leaves alone."""

import asyncio
import dataclasses

import numpy as np
import pytest

from sage_jax.config import to_dataclass
from sage_jax.data.packing import pack, trajectories_to_sequences
from sage_jax.errors import EngineError
from sage_jax.methods import grpo, skillmaster
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.types import RewardResult, Status, Task

STREAMS = {"act": 0, "review": 1}


def settings(**values) -> RunSettings:
    return to_dataclass(values, RunSettings)


def advantages(trajectories):
    return [[turn.advantage for turn in trajectory.turns] for trajectory in trajectories]


@pytest.fixture
def group(make_trajectory):
    """Two rollouts of one task: two acts and a review that pay, one act and a review that do not."""
    return [make_trajectory("g", [10.0, 9.5], 1.3), make_trajectory("g", [0.0], -0.5)]


# act, every step a sample: 10, 9.5, 0. m = 6.5; squares 3.5^2 + 3^2 + 6.5^2 = 63.5; s = sqrt(63.5 / 2) = 5.63471
#   -> 3.5 / s = 0.62115, 3 / s = 0.53242, -6.5 / s = -1.15357
# act, every episode a sample: m = (9.75 + 0) / 2 = 4.875;
#   s^2 = ((5.125^2 + 4.625^2) / 2 + 4.875^2) / 1 = 23.828125 + 23.765625 = 47.59375; s = 6.89882
#   -> 5.125 / s = 0.74288, 4.625 / s = 0.67041, -4.875 / s = -0.70664
# review: 1.3, -0.5. m = 0.4; s = sqrt(0.9^2 + 0.9^2) = 1.27279 -> +-0.70711, times gamma = 0.2: +-0.14142
# joint, every step a sample: 10, 9.5, 1.3, 0, -0.5. m = 4.06; squares 5.94^2 + 5.44^2 + 2.76^2 + 4.06^2 + 4.56^2
#   = 35.2836 + 29.5936 + 7.6176 + 16.4836 + 20.7936 = 109.772; s = sqrt(109.772 / 4) = 5.23861
#   -> 1.13389, 1.03845, -0.52686 * 0.2 = -0.10537, -0.77502, -0.87046 * 0.2 = -0.17409
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [[0.62115, 0.53242, 0.14142], [-1.15357, -0.14142]]),
        ({"gamma": 1.0}, [[0.62115, 0.53242, 0.70711], [-1.15357, -0.70711]]),
        ({"group_stats": "episodes"}, [[0.74288, 0.67041, 0.14142], [-0.70664, -0.14142]]),
        ({"joint": True}, [[1.13389, 1.03845, -0.10537], [-0.77502, -0.17409]]),
        ({"advantage": "mean"}, [[3.5, 3.0, 0.18], [-6.5, -0.18]]),
        # the others' mean: 10 - 9.5 / 2, 9.5 - 10 / 2, 0 - 19.5 / 2; review 1.3 + 0.5 and -0.5 - 1.3, times 0.2
        ({"advantage": "leave_one_out"}, [[5.25, 4.5, 0.36], [-9.75, -0.36]]),
    ],
)
def test_a_group_worked_by_hand(group, values, expected):
    filled, metrics = grpo.assign_advantages(group, settings(**values))
    for got, wanted in zip(advantages(filled), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert metrics["groups/total"] == (1 if values.get("joint") else 2)
    assert metrics["groups/no_spread"] == metrics["groups/invalid"] == 0
    review = [row[-1] for row in expected]
    assert metrics["advantage/review_std"] == pytest.approx(np.std(review), abs=1e-5)


def test_nothing_but_the_advantage_changes(group):
    filled, _ = grpo.assign_advantages(group, settings())
    bare = [
        dataclasses.replace(t, turns=tuple(dataclasses.replace(turn, advantage=None) for turn in t.turns))
        for t in filled
    ]
    assert bare == group


def test_groups_are_normalised_apart(group, make_trajectory):
    other = [make_trajectory("h", [1.0], 0.0), make_trajectory("h", [2.0], 1.0)]
    both, metrics = grpo.assign_advantages([group[0], other[0], group[1], other[1]], settings())
    alone, _ = grpo.assign_advantages(group, settings())
    assert advantages([both[0], both[2]]) == advantages(alone)
    assert metrics["groups/total"] == 4


def test_a_failed_episode_changes_no_statistic(group, make_trajectory):
    alone, _ = grpo.assign_advantages(group, settings())
    failed = make_trajectory("g", [None, None], status=Status.ENV_ERROR)
    filled, metrics = grpo.assign_advantages([group[0], failed, group[1]], settings())
    assert advantages([filled[0], filled[2]]) == advantages(alone)
    assert advantages([filled[1]]) == [[None, None]]
    assert metrics["groups/invalid"] == 0


def test_a_group_of_failures_is_counted_and_left_out(group, make_trajectory):
    lost = [make_trajectory("lost", [None], status=Status.TIMEOUT) for _ in range(2)]
    filled, metrics = grpo.assign_advantages([*lost, *group], settings())
    assert metrics["groups/invalid"] == 1
    assert advantages(filled[:2]) == [[None], [None]]


def test_a_review_without_a_reward_leaves_its_stream_only(group, make_trajectory):
    unpaid = make_trajectory("g", [0.0], text="a review whose probes failed")
    filled, _ = grpo.assign_advantages([*group, unpaid], settings())
    assert filled[2].turns[0].advantage is not None
    assert filled[2].turns[1].advantage is None
    np.testing.assert_allclose(
        [filled[0].turns[-1].advantage, filled[1].turns[-1].advantage], [0.14142, -0.14142], 1e-4
    )


def test_equal_rewards_take_no_part_in_the_update(make_trajectory):
    # Equal acts, different reviews: only the review turns are trained on.
    pair = [make_trajectory("g", [0.0, 0.0], 0.1), make_trajectory("g", [0.0], -2.0)]
    filled, metrics = grpo.assign_advantages(pair, settings())
    assert metrics["groups/no_spread"] == 1
    assert [row[:-1] for row in advantages(filled)] == [[None, None], [None]]
    batch = pack(trajectories_to_sequences(filled, streams=STREAMS), row_length=32)
    trained = batch.mask > 0
    assert trained.sum() == 4  # two output tokens of each review
    assert set(batch.stream_ids[trained]) == {STREAMS["review"]}
    assert set(np.round(batch.advantages[trained], 4)) == {np.float32(0.1414), np.float32(-0.1414)}


def test_every_output_token_of_a_trained_turn_carries_its_advantage(group):
    filled, _ = grpo.assign_advantages(group, settings())
    (first, second) = trajectories_to_sequences(filled, streams=STREAMS)
    assert list(first.mask) == [0, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1]
    np.testing.assert_allclose(first.advantages[first.mask > 0], np.repeat([0.62115, 0.53242, 0.14142], 2), atol=1e-5)
    assert list(second.mask) == [0, 0, 0, 1, 1, 0, 1, 1]


def test_a_round_without_a_single_turn_has_no_advantages(make_trajectory):
    empty = make_trajectory("g", [], status=Status.ENV_ERROR)
    filled, metrics = grpo.assign_advantages([empty], settings())
    assert filled == [empty]
    assert metrics["groups/total"] == 0


def test_plans_of_a_group_differ_in_their_seed_only():
    tasks = [Task(f"t{i}", "alfworld", "train", "f") for i in range(3)]
    run = settings(group_size=4, temperature=0.7)
    plans = grpo.plan_groups(run, tasks, SkillBank(), 5, review=True)
    assert [plan.group for plan in plans] == [f"5/t{i}" for i in range(3) for _ in range(4)]
    assert len({plan.seed for plan in plans}) == 12
    assert {(plan.review, plan.temperature) for plan in plans} == {(True, 0.7)}
    assert plans == grpo.plan_groups(run, tasks, SkillBank(), 5, review=True)
    again = grpo.plan_groups(run, tasks, SkillBank(), 6, review=True)
    assert not {plan.seed for plan in plans} & {plan.seed for plan in again}


def test_metrics_of_rollouts_leave_failures_out(make_trajectory):
    won = make_trajectory("g", [10.0, 10.0], success=True)
    lost = make_trajectory("g", [0.0], status=Status.TRUNCATED)
    failed = make_trajectory("g", [None] * 5, status=Status.ENV_ERROR)
    metrics = grpo.rollout_metrics([won, lost, failed])
    assert metrics["reward/mean"] == 5.0
    assert metrics["reward/success"] == 0.5
    assert metrics["episode/steps"] == 1.5
    assert metrics["tokens/generated"] == 16
    assert metrics["status/ok"] == metrics["status/truncated"] == metrics["status/env_error"] == 1


def test_metrics_of_a_round_in_which_everything_failed(make_trajectory):
    metrics = grpo.rollout_metrics([make_trajectory("g", [None], status=Status.ENGINE_ERROR)])
    assert not [name for name in metrics if name.startswith("reward/") and name != "reward/invalid_actions"]
    assert metrics["status/engine_error"] == 1


def test_a_round_in_which_everything_failed_is_an_error_with_the_first_reason(make_trajectory):
    class Player:
        async def play_all(self, plans, *, concurrency, straggler_factor):
            return [lost(plan, number) for number, plan in enumerate(plans)]

    def lost(plan, number):
        trajectory = make_trajectory(plan.group, [None], status=Status.ENGINE_ERROR, task=plan.task)
        return dataclasses.replace(trajectory, info={**trajectory.info, "error": f"server {number} is gone"})

    tasks = [Task("t0", "alfworld", "train", "f")]
    for method in (grpo, skillmaster):
        with pytest.raises(EngineError, match=r"round 5: none of its 2 .*engine_error: server 0 is gone"):
            asyncio.run(method.play_round(Player(), settings(group_size=2), tasks, tasks, SkillBank(), 4))


def test_a_review_reward_is_put_on_the_last_turn(make_trajectory):
    trajectory = make_trajectory("g", [1.0], text="written")
    rewarded = grpo.with_review_reward(trajectory, RewardResult(0.5), outcome="kept")
    assert rewarded.turns[:-1] == trajectory.turns[:-1]
    assert rewarded.turns[-1].reward == RewardResult(0.5)
    assert rewarded.turns[-1].info == {"text": "written", "outcome": "kept"}


def test_a_round_asks_for_no_reviews_and_keeps_the_bank(make_trajectory):
    class Player:
        async def play_all(self, plans, *, concurrency, straggler_factor):
            self.plans, self.concurrency = plans, concurrency
            return [make_trajectory(plan.group, [float(i)], task=plan.task) for i, plan in enumerate(plans)]

    player, bank = Player(), SkillBank().add(category="general", title="a", principle="b")
    tasks = [Task("t0", "alfworld", "train", "f"), Task("t1", "alfworld", "train", "f")]
    run = settings(group_size=2, concurrency=3)
    result = asyncio.run(grpo.play_round(player, run, tasks, tasks, bank, 0))
    assert result.bank is bank
    assert {(plan.bank, plan.review) for plan in player.plans} == {(bank, False)}
    assert player.concurrency == 3
    assert len(result.trajectories) == 4
    np.testing.assert_allclose(advantages(result.trajectories), [[-0.70711], [0.70711]] * 2, atol=1e-5)
    assert result.metrics["groups/total"] == 2
    assert not [name for name in result.metrics if name.startswith(("review/", "utility/"))]
