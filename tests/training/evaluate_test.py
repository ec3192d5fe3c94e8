"""Evaluation: every game once, the same whatever runs beside, and the bank as it was."""

import collections
import dataclasses

import pytest

from sage_jax.metrics.evaluation import summarise
from sage_jax.skills import SkillBank
from sage_jax.training.evaluate import choose_games, evaluate
from sage_jax.types import RewardResult, Status, Task, Trajectory

FAMILIES = ("clean", "heat", "look")


def games(*counts):
    return [
        Task(f"{family}/{i}", "alfworld", "valid_seen", family)
        for family, count in zip(FAMILIES, counts, strict=True)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("available", "wanted", "chosen"),
    [
        ((4, 4, 4), 6, (2, 2, 2)),
        ((4, 4, 4), 7, (3, 2, 2)),
        ((1, 9, 2), 8, (1, 5, 2)),  # families that run out leave their share to the others
        ((2, 2, 2), 0, (2, 2, 2)),
        ((2, 2, 2), 99, (2, 2, 2)),
    ],
)
def test_games_are_chosen_evenly_over_families(available, wanted, chosen):
    tasks = games(*available)
    picked = choose_games(tasks, wanted)
    assert tuple(collections.Counter(task.family for task in picked)[family] for family in FAMILIES) == chosen
    names = [task.id for task in picked]
    assert names == sorted(set(names))
    assert picked == choose_games(tasks, wanted)


def bank():
    words = {"title": "search shelf", "principle": "start at shelf"}
    return SkillBank().add(category="general", **words)


def play(session, concurrency, skills, splits=("valid_seen", "valid_unseen"), **values):
    evaluation = dataclasses.replace(session.settings.evaluation, eval_episodes=0, **values)
    agent = dataclasses.replace(session.settings.agent, concurrency=concurrency)
    settings = dataclasses.replace(session.settings, evaluation=evaluation, agent=agent)
    tasks = {split: session.tasks[split] for split in splits}
    return session.runner.run(evaluate(session.player, settings, tasks, skills))


@pytest.fixture(scope="module")
def alone(tiny_session):
    """Every game with and without a skill, one at a time."""
    return play(tiny_session, 1, bank())


def test_each_game_is_played_once_with_and_once_without_skills(tiny_session, alone):
    outcomes, played = alone
    wanted = [task.id for split in ("valid_seen", "valid_unseen") for task in tiny_session.tasks[split]]
    assert len(wanted) == 12
    for shown in (True, False):
        kept = [t.task.id for outcome, t in zip(outcomes, played, strict=True) if outcome.retrieval is shown]
        assert sorted(kept) == sorted(wanted)
    assert all(bool(t.info["skills"]) == outcome.retrieval for outcome, t in zip(outcomes, played, strict=True))
    assert all(t.task.split == outcome.split for outcome, t in zip(outcomes, played, strict=True))
    assert not any(turn.stream == "review" for t in played for turn in t.turns)
    rows = {(row.split, row.retrieval): row.n for row in summarise(outcomes) if row.family == "all"}
    assert rows == {(split, shown): 6 for split in ("valid_seen", "valid_unseen") for shown in (True, False)}


@pytest.mark.parametrize("concurrency", [8, 32])  # 24 episodes on 16 slots: at 32 they take turns
def test_nothing_depends_on_how_many_episodes_run_at_one_time(tiny_session, alone, concurrency):
    outcomes, played = play(tiny_session, concurrency, bank())
    assert outcomes == alone[0]
    for here, there in zip(played, alone[1], strict=True):
        assert [turn.output_ids for turn in here.turns] == [turn.output_ids for turn in there.turns]
        assert [turn.logprobs for turn in here.turns] == [turn.logprobs for turn in there.turns]
        assert here.info == there.info


def test_a_game_plays_the_same_whatever_else_is_evaluated(tiny_session, alone):
    outcomes, _ = play(tiny_session, 4, bank(), splits=("valid_unseen",))
    assert outcomes == [outcome for outcome in alone[0] if outcome.split == "valid_unseen"]


def test_the_bank_is_what_it_was(tiny_session):
    skills = bank()
    before = skills.snapshot()
    play(tiny_session, 8, skills, splits=("valid_seen",))
    assert skills.snapshot() == before


def test_an_empty_bank_is_evaluated_once(tiny_session):
    outcomes, _ = play(tiny_session, 8, SkillBank(), splits=("valid_seen",))
    assert [outcome.retrieval for outcome in outcomes] == [False] * 6


def test_seed_and_temperature_are_the_evaluations_own(tiny_session):
    def ids(**values):
        played = play(tiny_session, 8, SkillBank(), splits=("valid_seen",), **values)[1]
        return [[turn.output_ids for turn in t.turns] for t in played]

    greedy = ids(eval_temperature=0.0)
    assert greedy == ids(eval_temperature=0.0, eval_seed=9)
    assert ids(eval_temperature=1.0) != ids(eval_temperature=1.0, eval_seed=9)


def test_a_crash_is_counted_and_is_no_failure_of_the_agent(tiny_session):
    class CrashingPlayer:
        async def play_all(self, plans, *, concurrency, done):
            statuses = [Status.ENV_ERROR, *[Status.OK] * (len(plans) - 1)]
            return [self.trajectory(plan, status) for plan, status in zip(plans, statuses, strict=True)]

        def trajectory(self, plan, status):
            reward = RewardResult(10.0 if status.has_reward else None, status)
            info = {"success": status.has_reward, "score": 0.25, "steps": 3, "tokens": 4}
            return Trajectory(plan.task, plan.group, plan.seed, (), reward, info)

    session = dataclasses.replace(tiny_session, player=CrashingPlayer())
    outcomes, _ = play(session, 2, SkillBank(), splits=("valid_seen",))
    assert [outcome.success for outcome in outcomes] == [None, *[True] * 5]
    row = summarise(outcomes)[0]
    assert (row.n, row.failed, row.success) == (5, 1, 1.0)
