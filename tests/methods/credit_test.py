"""Paired and step-level credit on trajectories written by hand, and what the defaults leave alone."""

import dataclasses

import numpy as np
import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import ConfigError
from sage_jax.methods import grpo
from sage_jax.methods.credit import paired_rewards, step_credit
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.types import Status, Task


def settings(**values) -> RunSettings:
    return to_dataclass(values, RunSettings)


def advantages(trajectories):
    return [[turn.advantage for turn in trajectory.turns] for trajectory in trajectories]


@pytest.fixture
def play(make_trajectory):
    """Returns (observations, success, skills, ...) -> a rollout of group "g" that pays 10 for success, all shared."""

    def make(observations, success, skills=(), review=None, **kwargs):
        rewards = [10.0 * success] * len(observations)
        made = make_trajectory("g", rewards, review, success=success, **kwargs)
        shown = [
            dataclasses.replace(turn, info={**turn.info, "observation": text})
            for turn, text in zip(made.turns, [*observations, ""], strict=False)
        ]
        return dataclasses.replace(made, turns=tuple(shown), info={**made.info, "skills": list(skills)})

    return make


def test_step_credit_by_hand(play):
    # Discount 1/2, difference to the mean. Rollout 0: hall 5, shop 10. Rollout 1: hall 0, till 0, hall 0.
    # The hall was met three times, with returns 5, 0, 0: mean 5/3.
    rollouts = [play(["hall", "shop"], True, review=0.3), play(["hall", "till", "hall"], False)]
    run = settings(step_weight=2.0, step_discount=0.5, advantage="mean")
    added, metrics = step_credit(rollouts, run)
    np.testing.assert_allclose(added, [20 / 3, 0, 0, -10 / 3, 0, -10 / 3], rtol=1e-6)
    assert metrics["groups/step_share"] == pytest.approx(3 / 5)
    filled, _ = grpo.assign_advantages(rollouts, run)
    # Turns 10, 10, 0, 0, 0 have mean 4: 6 + 20/3, 6, and -4 with what the steps add; the review is alone: no signal.
    (first, second) = advantages(filled)
    np.testing.assert_allclose(first[:2], [6 + 20 / 3, 6], rtol=1e-6)
    assert first[2] is None
    np.testing.assert_allclose(second, [-4 - 10 / 3, -4, -4 - 10 / 3], rtol=1e-6)


def test_shaping_stays_with_its_own_step(play):
    rollouts = [play(["hall", "shop"], True), play(["hall", "shop"], True)]
    clumsy = rollouts[1].turns[0]
    clumsy = dataclasses.replace(clumsy, reward=dataclasses.replace(clumsy.reward, value=9.5))
    rollouts[1] = dataclasses.replace(rollouts[1], turns=(clumsy, rollouts[1].turns[1]))
    added, _ = step_credit(rollouts, settings(step_weight=1.0, step_discount=0.5, advantage="mean"))
    np.testing.assert_allclose(added, [0.25, 0, -0.25, 0], rtol=1e-6)  # 5 against 5 - 0.5; the shop is 10 in both


def test_steps_speak_where_episodes_are_silent(play):
    # Both won, so episodes say nothing; the second came back to the hall and was further from the win.
    rollouts = [play(["hall", "shop"], True), play(["hall", "hall", "shop"], True)]
    silent, _ = grpo.assign_advantages(rollouts, settings(advantage="mean"))
    assert advantages(silent) == [[None, None], [None, None, None]]
    heard, _ = grpo.assign_advantages(rollouts, settings(advantage="mean", step_weight=1.0, step_discount=0.5))
    # Halls: 5, 2.5, 5 -> mean 25/6. Shops: 10, 10.
    np.testing.assert_allclose(advantages(heard)[0][0], 5 / 6, rtol=1e-6)
    np.testing.assert_allclose(advantages(heard)[1][:2], [-10 / 6, 5 / 6], rtol=1e-6)
    assert advantages(heard)[0][1] is advantages(heard)[1][2] is None


def test_a_lost_episode_has_no_steps(play, make_trajectory):
    lost = make_trajectory("g", [None, None], status=Status.ENV_ERROR)
    added, _ = step_credit([play(["hall"], True), lost, play(["hall"], False)], settings(step_weight=1.0))
    np.testing.assert_allclose(added, [0.70711, 0, 0, -0.70711], atol=1e-5)


def test_paired_rewards_by_hand(play):
    rollouts = [
        play(["a"], True, ["s1"], review=0.5),
        play(["a"], False, ["s1"]),
        play(["a"], False),
        play(["a"], True),
    ]
    paid, metrics = paired_rewards(rollouts, settings(paired_share=0.5, paired_coef=4.0))
    # Half of those without skills won: 10 + 4 / 2, 0 - 4 / 2; the review and the others keep theirs.
    assert [[turn.reward.value for turn in t.turns] for t in paid] == [[12.0, 0.5], [-2.0], [0.0], [10.0]]
    assert paid[0].turns[0].reward.parts["paired"] == 2.0
    assert metrics == {"paired/gap": 0.0, "paired/groups": 1.0}


def test_the_gap_is_told_without_paying_for_it(play):
    rollouts = [play(["a"], True, ["s1"]), play(["a"], False)]
    paid, metrics = paired_rewards(rollouts, settings(paired_share=0.5))
    assert paid == rollouts
    assert metrics["paired/gap"] == 1.0


def test_defaults_change_nothing(play):
    rollouts = [play(["hall"], True, ["s1"]), play(["hall"], False)]
    assert paired_rewards(rollouts, settings()) == (rollouts, {})
    added, metrics = step_credit(rollouts, settings())
    assert not added.any()
    assert metrics == {}


def test_the_first_of_a_group_are_shown_no_skills():
    bank, task = SkillBank().add(category="general", title="a", principle="b"), Task("t", "alfworld", "train", "f")
    plans = grpo.plan_groups(settings(group_size=5, paired_share=0.5), [task], bank, 0, review=False)
    assert [plan.bank is None for plan in plans] == [True, True, False, False, False]


def test_credit_without_a_pair_is_refused():
    with pytest.raises(ConfigError, match=r"paired_coef=1.0 with paired_share=0"):
        settings(paired_coef=1.0)
