"""Chains: who is drawn, what each rollout sees, who is compared with whom, and what is paid, worked by hand."""

import asyncio
import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as cases
from hypothesis import strategies as st

from sage_jax.agents.episode import EpisodePlan
from sage_jax.agents.gathering import StragglerError
from sage_jax.config import to_dataclass
from sage_jax.errors import ConfigError
from sage_jax.methods.chains import Chain, ChainRollout, link_of, make_chains, pay_chain, play_chains
from sage_jax.methods.grpo import assign_advantages
from sage_jax.rewards import SageRewardConfig
from sage_jax.settings import RunSettings
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

SETTINGS = to_dataclass({"advantage": "mean", "group_stats": "episodes", "gamma": 1.0}, RunSettings)
FIRST = frozenset({0})
NOBODY = frozenset()


def task(number: int, scenario: str = "s", words: str = "count notes") -> Task:
    return Task(f"{scenario}_{number}", "appworld", "train", "f", {"scenario": scenario, "instruction": words})


def trajectory(plan: EpisodePlan, *, won=False, status=Status.OK, no_code=False, turns=2) -> Trajectory:
    turn = Turn("act", (1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), True, info={"action": "", "ran": True})
    info = {"success": won, "score": float(won), "ended_by_turn": no_code, "steps": turns, "tokens": 3 * turns}
    value = float(won) if status.has_reward else None
    return Trajectory(plan.task, plan.group, plan.seed, (turn,) * turns, RewardResult(value, status), info)


@dataclasses.dataclass(frozen=True)
class Memory:
    """A library of the tasks played."""

    seen: tuple[str, ...] = ()

    def __len__(self):
        return len(self.seen)

    def show(self, plan):
        return dataclasses.replace(plan, credit="+".join(self.seen))

    def learn(self, played, position):
        assert position == len(self.seen)
        return Memory((*self.seen, f"{played.task.id}:{played.seed}"))

    def used(self, played):
        return frozenset(range(len(self.seen)))


class Recorder:
    """A player that wins always, but loses the tasks that are named."""

    def __init__(self, lost=()):
        self.plans, self.lost, self.playing, self.most = [], lost, 0, 0

    async def play(self, plan):
        self.plans.append(plan)
        self.playing += 1
        self.most = max(self.most, self.playing)
        await asyncio.sleep(0)
        self.playing -= 1
        status = Status.ENV_ERROR if plan.task.id in self.lost else Status.OK
        return trajectory(plan, won=status is Status.OK, status=status)


def play(player, chains, **options):
    wanted = {"members": 3, "group": "7", "seed": 1, "temperature": 0.7, "concurrency": 2} | options
    return asyncio.run(play_chains(player, chains, Memory, **wanted))


def test_a_chain_is_the_anchor_and_others_of_its_scenario():
    tasks = [task(i, s) for s in ("a", "b") for i in range(3)]
    chains = make_chains([tasks[0], tasks[4], tasks[0]], tasks, length=2, by="scenario", seed=0, number=0)
    assert [chain.tasks[0].id for chain in chains] == ["a_0", "b_1", "a_0"]
    assert len({chain.key for chain in chains}) == 3  # the same anchor twice is two chains
    for chain in chains:
        assert len({t.id for t in chain.tasks}) == 2
        assert len({link_of(t, "scenario") for t in chain.tasks}) == 1
    assert chains == make_chains([tasks[0], tasks[4], tasks[0]], tasks, length=2, by="scenario", seed=0, number=0)
    seconds = Counter(
        make_chains([tasks[0]], tasks, length=2, by="scenario", seed=0, number=n)[0].tasks[1].id for n in range(40)
    )
    assert set(seconds) == {"a_1", "a_2"}
    assert min(seconds.values()) > 8


def test_chains_by_likeness_cross_scenarios():
    tasks = [task(0, "a", "how many notes have the tag garden"), task(1, "b", "how many notes have the tag chess")]
    tasks += [task(i, "c", f"switch off the alarm number {i}") for i in range(2, 12)]
    (chain,) = make_chains([tasks[0]], tasks, length=9, by="similarity", seed=0, number=0)
    assert len(chain.tasks) == 9
    assert "b_1" in {t.id for t in chain.tasks}  # the nearest eight are all drawn
    alarms = make_chains([tasks[5]], tasks, length=9, by="similarity", seed=0, number=0)[0].tasks
    assert {t.payload["scenario"] for t in alarms} == {"c"}


def test_a_family_of_text_tasks_is_a_chain_too():
    tasks = [Task(f"t{i}", "alfworld", "train", f"family{i % 2}") for i in range(6)]
    (chain,) = make_chains([tasks[1]], tasks, length=3, by="family", seed=0, number=0)
    assert {t.family for t in chain.tasks} == {"family1"}


@pytest.mark.parametrize(
    ("by", "words"), [("scenario", "use 'family'"), ("similarity", "has no instruction"), ("family", "only 1 training")]
)
def test_chains_that_cannot_be(by, words):
    tasks = [Task(f"t{i}", "alfworld", "train", "family") for i in range(2)]
    with pytest.raises(ConfigError, match=words):
        make_chains(tasks[:1], tasks, length=3, by=by, seed=0, number=0)


def test_a_task_far_slower_than_the_others_ends_its_chain():
    class Slow(Recorder):
        async def play(self, plan, stragglers):
            try:
                async with stragglers.limit():
                    await asyncio.sleep(60 if plan.task.id == "t_0" else 0.01)
            except StragglerError:
                self.lost = (*self.lost, plan.task.id)
            return await super().play(plan)

    chains = [Chain(key, (task(0, key), task(1, key))) for key in ("s", "t", "u", "v", "w", "x")]
    rollouts = play(Slow(), chains, members=1, concurrency=6, straggler_factor=4.0)
    assert [len(rollout.trajectories) for rollout in rollouts] == [2, 1, 2, 2, 2, 2]
    assert rollouts[1].trajectories[0].reward.value is None


def test_each_rollout_sees_what_it_made_itself_and_nothing_else():
    chains = [Chain("x", (task(0), task(1), task(2))), Chain("y", (task(0, "t"), task(1, "t"), task(2, "t")))]
    player = Recorder()
    rollouts = play(player, chains)
    assert [(r.chain.key, len(r.library)) for r in rollouts] == [("x", 3)] * 3 + [("y", 3)] * 3
    assert player.most == 2
    assert len({plan.seed for plan in player.plans}) == 18
    shown = {(plan.seed, plan.credit) for plan in player.plans}
    for rollout in rollouts:
        first, second, third = rollout.trajectories
        told = [f"{played.task.id}:{played.seed}" for played in rollout.trajectories]
        assert {(first.seed, ""), (second.seed, told[0]), (third.seed, f"{told[0]}+{told[1]}")} <= shown
        assert rollout.used == (NOBODY, FIRST, frozenset({0, 1}))
        assert [played.group for played in rollout.trajectories] == [f"7/{rollout.chain.key}#{p}" for p in range(3)]
    assert play(Recorder(), chains) == rollouts


def test_a_lost_task_ends_its_chain_in_training_and_not_in_evaluation():
    chain = Chain("x", (task(0), task(1), task(2)))
    for rollout in play(Recorder({"s_1"}), [chain]):
        assert [played.reward.status for played in rollout.trajectories] == [Status.OK, Status.ENV_ERROR]
        assert len(rollout.library) == 1
    seen = []
    for rollout in play(Recorder({"s_2"}), [chain], whole=True, done=lambda played: seen.append(played.task.id)):
        assert len(rollout.trajectories) == 3
    assert Counter(seen) == {"s_0": 3, "s_1": 3, "s_2": 3}


def rollout(key, wins, used=(NOBODY, FIRST), **more):
    """One rollout of a chain of two, named by its key, with these outcomes."""
    plans = [EpisodePlan(task(i, key), f"0/{key}#{i}", seed=i) for i in range(len(wins))]
    played = tuple(trajectory(plan, won=won, **more) for plan, won in zip(plans, wins, strict=True))
    return ChainRollout(Chain(key, tuple(plan.task for plan in plans)), played, tuple(used[: len(wins)]), Memory())


# Two rollouts of one chain; rewards by R1 = r1 + r1 r2 u, R2 = r2 + r2 u, then minus the mean at the position:
#   both solved with the skill: 2, 2;  first solved, second not, the skill used in vain: 1, 0
#   position 1: mean 1.5 -> 0.5, -0.5;  position 2: mean 1 -> 1, -1
# outcome: 1, 1 and 1, 0. Position 1 has no spread and leaves the loss; position 2: mean 0.5 -> 0.5, -0.5
# chain: means of r over the chain 1 and 0.5, for both tasks -> 0.25, -0.25 at both positions
@pytest.mark.parametrize(
    ("kind", "rewards", "advantages"),
    [
        ("skill", [2.0, 2.0, 1.0, 0.0], [0.5, 1.0, -0.5, -1.0]),
        ("outcome", [1.0, 1.0, 1.0, 0.0], [None, 0.5, None, -0.5]),
        ("chain", [1.0, 1.0, 0.5, 0.5], [0.25, 0.25, -0.25, -0.25]),
    ],
)
def test_two_rollouts_by_hand(kind, rewards, advantages):
    rollouts = [rollout("c", (True, True)), rollout("c", (True, False))]
    paid = [played for r in rollouts for played in pay_chain(r, SageRewardConfig(kind))]
    assert [played.reward.value for played in paid] == rewards
    assert [played.info["position"] for played in paid] == [0, 1, 0, 1]
    assert [played.info["used"] for played in paid] == [[], [0], [], [0]]
    filled, _ = assign_advantages(paid, SETTINGS)
    for played, reward, advantage in zip(filled, rewards, advantages, strict=True):
        assert {turn.reward.value for turn in played.turns} == {reward}
        assert {turn.advantage for turn in played.turns} == {advantage}


def test_a_turn_without_code_costs_one():
    (first,) = pay_chain(rollout("c", (False,), no_code=True), SageRewardConfig())
    assert first.reward.value == -1.0
    assert first.reward.parts == {"no_code": -1.0}


outcomes = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(1, 4))
groups_of_rollouts = st.lists(st.lists(outcomes, min_size=2, max_size=5), min_size=1, max_size=4)


@cases(max_examples=60, deadline=None)
@given(groups_of_rollouts)
def test_a_statistic_never_mixes_chains_or_positions(chains):
    """Every advantage is the reward minus the mean over its own chain and position, however long the episodes are."""
    paid = []
    for number, members in enumerate(chains):
        for first, second, used, turns in members:
            made = rollout(f"c{number}", (first, second), (NOBODY, FIRST if used else NOBODY), turns=turns)
            paid += pay_chain(made, SageRewardConfig())
    filled, _ = assign_advantages(paid, SETTINGS)
    by_place = {}
    for played in paid:
        by_place.setdefault((played.task.payload["scenario"], played.info["position"]), []).append(played.reward.value)
    assert len(by_place) == 2 * len(chains)
    for played in filled:
        rewards = by_place[played.task.payload["scenario"], played.info["position"]]
        expected = played.reward.value - np.mean(rewards)
        for turn in played.turns:
            if len(set(rewards)) == 1:
                assert turn.advantage is None  # nothing to learn from
            else:
                assert turn.advantage == pytest.approx(expected, abs=1e-6)
    # What happens in one chain changes nothing in another: alone, the first has the same advantages.
    alone, _ = assign_advantages(paid[: 2 * len(chains[0])], SETTINGS)
    assert alone == filled[: len(alone)]
