"""SkillMaster's round: what reviews become, what edits are worth, which of them the next round's bank holds."""

import asyncio
import dataclasses
import itertools
import json

import numpy as np
import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import RewardError
from sage_jax.methods import skillmaster
from sage_jax.methods.skillmaster import accept_edits, play_round, read_reviews, reward_reviews
from sage_jax.settings import RunSettings
from sage_jax.skills import EditKind, SkillBank
from sage_jax.types import RewardResult, Status, Task

FAMILY, OTHER = "pick_and_place_simple", "look_at_obj_in_light"
TRAIN = [Task(f"{family}/{i}", "alfworld", "train", family) for family in (FAMILY, OTHER) for i in range(4)]
HELD_OUT = Task(f"{FAMILY}/x", "alfworld", "valid_seen", FAMILY)


def settings(**values) -> RunSettings:
    return to_dataclass({"probes": 2, "group_size": 3, **values}, RunSettings)


def review(name, **arguments):
    return f"<think> so </think> <tool_call> {json.dumps({'name': name, 'arguments': arguments})} </tool_call>"


def propose(title, principle=None, category="general"):
    words = {"title": title, "principle": principle or f"principle of {title}", "when_to_apply": "often"}
    return review("propose_skill", category=category, **words, evidence=f"saw {title}")


KEEP = review("keep_skill", reason="all is well")


class RecordingPlayer:
    """Writes the given reviews in turn, and plays probes as `solves(bank, task)` says: None is a crash."""

    def __init__(self, make_trajectory, reviews, solves=lambda bank, task: False):
        self.make, self.reviews, self.solves = make_trajectory, itertools.cycle(reviews), solves
        self.groups, self.probes = [], []

    async def play_all(self, plans, *, concurrency, straggler_factor):
        kind = self.groups if plans and plans[0].review else self.probes
        kind.extend(plans)
        return [self.play(plan) for plan in plans]

    def play(self, plan):
        if plan.review:
            return self.make(plan.group, [0.0], text=next(self.reviews), task=plan.task)
        won = self.solves(plan.bank, plan.task)
        status = Status.ENV_ERROR if won is None else Status.OK
        return self.make(plan.group, [None if won is None else 0.0], status=status, success=bool(won), task=plan.task)


def play(make_trajectory, reviews, *, solves=lambda bank, task: False, bank=None, tasks=TRAIN[:1], **values):
    player = RecordingPlayer(make_trajectory, reviews, solves)
    bank = SkillBank() if bank is None else bank
    train = [HELD_OUT, *TRAIN]
    return player, asyncio.run(play_round(player, settings(**values), tasks, train, bank, 3))


def titles(bank):
    return [skill.title for skill in bank]


def test_each_review_is_read_against_the_bank_it_saw(make_trajectory):
    bank = SkillBank().add(category="general", title="old", principle="old principle")
    update = review("update_skill", skill_id="old", title="new", principle="p", when_to_apply="w", reason="better")
    texts = [propose("a"), propose("old"), update, KEEP, "no call", review("dance"), propose("b", category="kitchen")]
    trajectories = [make_trajectory("g", [0.0], text=text) for text in texts]
    reviews = read_reviews([make_trajectory("g", [1.0]), *trajectories], bank, number=4)
    assert [r.outcome.kind for r in reviews] == [
        EditKind.ADDED,
        EditKind.DUPLICATE,
        EditKind.UPDATED,
        EditKind.KEPT,
        EditKind.PARSE_ERROR,
        EditKind.UNKNOWN_TOOL,
        EditKind.INVALID_ARGUMENTS,
    ]
    assert [r.index for r in reviews] == list(range(1, 8))  # the episode without a review turn is passed over
    assert titles(reviews[0].outcome.bank) == ["old", "a"]
    assert titles(reviews[2].outcome.bank) == ["new"]
    assert titles(bank) == ["old"]
    provenance = reviews[0].outcome.bank.get("gen_2").provenance
    assert (provenance.task_id, provenance.policy_version, provenance.step) == ("alfworld/train/g", 7, 4)
    assert provenance.reason == "saw a"


def test_a_failed_episode_has_no_review(make_trajectory):
    assert read_reviews([make_trajectory("g", [None], status=Status.ENV_ERROR)], SkillBank(), 0) == []


def test_a_review_is_paid_utility_and_form(make_trajectory):
    texts = [propose("a"), KEEP, propose("b"), "no call", propose("c")]
    trajectories = [make_trajectory("g", [0.0], text=text) for text in texts]
    reviews = read_reviews(trajectories, SkillBank(), 0)
    lost = RewardResult(None, Status.ENV_ERROR)
    rewarded = reward_reviews(trajectories, reviews, {0: RewardResult(0.65), 2: lost})
    rewards = [t.turns[-1].reward for t in rewarded]
    # valid call 0.1; no call -2, no thought -0.5, no tags -0.5; an edit that nobody measured is worth 0
    assert [r.value for r in rewards] == pytest.approx([0.75, 0.1, None, -3.0, 0.1])
    assert rewards[2].status is Status.ENV_ERROR
    assert rewarded[0].turns[-1].info["outcome"] == "added"
    assert rewarded[0].turns[-1].info["utility"] == 0.65
    assert all(t.turns[:-1] == before.turns[:-1] for t, before in zip(rewarded, trajectories, strict=True))


@pytest.fixture
def edits(make_trajectory):
    """Reviews of five edits: useful, harmful, more useful, the same words as the first, and lost."""
    texts = [propose("a"), propose("b"), propose("c"), propose("A !", "other words"), propose("e"), KEEP]
    trajectories = [make_trajectory(f"g{i}", [0.0], text=text) for i, text in enumerate(texts)]
    values = [0.2, -0.3, 0.9, 0.1]
    utilities = {i: RewardResult(value) for i, value in enumerate(values)} | {4: RewardResult(None, Status.TIMEOUT)}
    return read_reviews(trajectories, SkillBank(), 2), utilities


def test_only_useful_edits_are_accepted_best_first(edits):
    bank = accept_edits(SkillBank(), *edits, "utility>0")
    assert titles(bank) == ["c", "a"]  # b harms, "A !" has become a duplicate of a, e was never measured
    assert [entry.provenance.utility for entry in bank.log] == [0.9, 0.2]
    assert [entry.provenance.task_id for entry in bank.log] == ["alfworld/train/g2", "alfworld/train/g0"]
    assert [entry.provenance.step for entry in bank.log] == [2, 2]
    assert SkillBank.restore(json.loads(json.dumps(bank.snapshot()))) == bank


def test_all_edits_are_accepted_best_first(edits):
    bank = accept_edits(SkillBank(), *edits, "always")
    assert titles(bank) == ["c", "a", "b", "e"]
    assert [entry.provenance.utility for entry in bank.log] == [0.9, 0.2, -0.3, None]


def test_without_utilities_edits_come_in_the_order_of_the_episodes(edits):
    assert titles(accept_edits(SkillBank(), edits[0], {}, "always")) == ["a", "b", "c", "e"]
    assert len(accept_edits(SkillBank(), edits[0], {}, "utility>0")) == 0


def test_the_same_edit_of_two_reviews_is_worth_the_mean_of_both(make_trajectory):
    trajectories = [make_trajectory(f"g{i}", [0.0], text=propose(title)) for i, title in enumerate("aab")]
    reviews = read_reviews(trajectories, SkillBank(), 0)
    utilities = {i: RewardResult(value) for i, value in enumerate((1.0, -1.6, 0.1))}
    bank = accept_edits(SkillBank(), reviews, utilities, "utility>0")
    assert titles(bank) == ["b"]  # the mean of 1.0 and -1.6 is below zero
    assert titles(accept_edits(SkillBank(), reviews, {0: RewardResult(1.0)}, "utility>0")) == ["a"]


def test_of_edits_that_are_shown_together_the_best_one_enters_alone(make_trajectory):
    """By wording "a" is worth (1.0 + 0.1 - 0.2) / 3 = 0.3, "b" (0.6 + 0.3) / 2 = 0.45; in one family "a" has 1.0."""
    words, values = ["a", "b", "A !", "a", "b"], (1.0, 0.6, 0.1, -0.2, 0.3)
    families = [FAMILY, FAMILY, FAMILY, OTHER, OTHER]
    trajectories = [
        make_trajectory(f"g{i}", [0.0], text=propose(title, category=family), task=Task(f"t{i}", "x", "train", family))
        for i, (title, family) in enumerate(zip(words, families, strict=True))
    ]
    reviews = read_reviews(trajectories, SkillBank(), 0)
    utilities = {i: RewardResult(value) for i, value in enumerate(values)}
    bank = accept_edits(SkillBank(), reviews, utilities, "best")
    assert titles(bank) == ["b"]
    assert bank.log[0].provenance.utility == pytest.approx(0.45)
    assert titles(accept_edits(SkillBank(), reviews, utilities, "utility>0")) == ["a", "b"]
    harmful = {i: RewardResult(-abs(value)) for i, value in enumerate(values)}
    assert len(accept_edits(SkillBank(), reviews, harmful, "best")) == 0
    assert len(accept_edits(SkillBank(), reviews, {}, "best")) == 0


def test_of_two_updates_of_one_skill_the_better_one_stays(make_trajectory):
    bank = SkillBank().add(category="general", title="old", principle="old principle")
    words = {"skill_id": "gen_1", "when_to_apply": "w", "reason": "r"}
    texts = [review("update_skill", title=t, principle=f"principle of {t}", **words) for t in ("good", "best")]
    reviews = read_reviews([make_trajectory("g", [0.0], text=text) for text in [*texts, propose("a")]], bank, 0)
    utilities = {i: RewardResult(value) for i, value in enumerate((0.1, 0.5, 0.2))}
    for accept in ("utility>0", "always"):
        after = accept_edits(bank, reviews, utilities, accept)
        assert [entry.after.title for entry in after.log] == ["old", "best", "a"]
    assert [entry.after.title for entry in accept_edits(bank, reviews, utilities, "best").log] == ["old", "best"]


def test_probes_come_from_training_and_never_from_the_task_itself(make_trajectory):
    task = TRAIN[0]
    player, result = play(make_trajectory, [propose("a"), propose("b"), KEEP], tasks=[task])
    probed = {plan.task.id for plan in player.probes}
    assert len(probed) == 2
    assert probed <= {f"{FAMILY}/{i}" for i in (1, 2, 3)}
    # both arms of two edits over two probes, B once: 2 * (1 + 2) episodes in place of 8
    assert len(player.probes) == result.metrics["utility/probe_run"] == 6
    assert result.metrics["utility/probe_requested"] == 8
    assert result.metrics["utility/probe_saved"] == 2
    assert not any(plan.review for plan in player.probes)


def test_both_arms_of_a_probe_share_their_seed(make_trajectory):
    player, _ = play(make_trajectory, [propose("a"), propose("b"), KEEP])
    for _, plans in itertools.groupby(sorted(player.probes, key=lambda p: p.task.id), key=lambda p: p.task.id):
        plans = list(plans)
        assert len({plan.seed for plan in plans}) == 1
        assert sorted(titles(plan.bank) for plan in plans) == [[], ["a"], ["b"]]
    assert len({plan.seed for plan in player.probes}) == 2


def test_identical_edits_share_their_probes(make_trajectory):
    player, result = play(make_trajectory, [propose("a")])
    assert result.metrics["utility/edits"] == 3
    assert len(player.probes) == result.metrics["utility/probe_run"] == 4
    assert result.metrics["utility/probe_saved"] == 8
    assert titles(result.bank) == []  # nothing is gained: utility 0 is not above 0


def test_an_edit_is_worth_what_it_does_to_the_probes(make_trajectory):
    useful = lambda bank, task: "a" in titles(bank)  # noqa: E731
    player, result = play(make_trajectory, [propose("a"), propose("b"), KEEP], solves=useful)
    # both probes are solved in 1 of 30 steps under B' and not under B: delta = 1 + 29 / 30; U = delta + 0.3 * 2 / 2
    expected = 1 + 29 / 30 + 0.3
    rewards = [t.turns[-1].reward.value for t in result.trajectories]
    assert rewards == pytest.approx([expected + 0.1, 0.1, 0.1])
    # z of (r, 0.1, 0.1) is (2, -1, -1) / sqrt(3); gamma 0.2
    advantages = [t.turns[-1].advantage for t in result.trajectories]
    np.testing.assert_allclose(advantages, np.array([2, -1, -1]) / np.sqrt(3) * 0.2, atol=1e-5)
    assert titles(result.bank) == ["a"]
    assert result.bank.log[0].provenance.utility == pytest.approx(expected)
    assert result.metrics["utility/mean"] == pytest.approx(expected / 2)
    assert result.metrics["utility/positive_share"] == 0.5
    assert (result.metrics["bank/size"], result.metrics["bank/version"]) == (1, 1)
    assert result.metrics["review/added"] == pytest.approx(2 / 3)
    assert result.metrics["review/kept"] == pytest.approx(1 / 3)
    assert result.metrics["review/valid"] == 1


def test_probes_that_crash_leave_the_review_out_of_the_loss(make_trajectory):
    crash = lambda bank, task: None  # noqa: E731
    _, result = play(make_trajectory, [propose("a"), KEEP, "no call"], solves=crash, accept="always")
    turns = [t.turns[-1] for t in result.trajectories]
    assert turns[0].advantage is None
    assert turns[0].reward.status is Status.ENV_ERROR
    assert turns[1].advantage == pytest.approx(-turns[2].advantage) == pytest.approx(0.2 / np.sqrt(2), abs=1e-4)
    assert titles(result.bank) == ["a"]


def test_the_bank_that_must_not_change_does_not(make_trajectory):
    bank = SkillBank().add(category="general", title="old", principle="old principle")
    useful = lambda bank, task: "a" in titles(bank)  # noqa: E731
    for accept in ("always", "utility>0"):
        _, result = play(make_trajectory, [propose("a")], solves=useful, bank=bank, mutate="never", accept=accept)
        assert result.bank is bank
        assert result.metrics["utility/mean"] > 0


def test_without_utility_no_probe_is_played(make_trajectory):
    player, result = play(make_trajectory, [propose("a"), KEEP, "no call"], utility=False, accept="always")
    assert player.probes == []
    assert [t.turns[-1].reward.value for t in result.trajectories] == pytest.approx([0.1, 0.1, -3.0])
    assert titles(result.bank) == ["a"]
    assert result.bank.log[0].provenance.utility is None
    assert not [name for name in result.metrics if name.startswith("utility/")]


def test_every_episode_is_shown_the_bank_and_reviewed(make_trajectory):
    bank = SkillBank().add(category="general", title="old", principle="old principle")
    player, result = play(make_trajectory, [KEEP], bank=bank, tasks=TRAIN[:2])
    assert len(player.groups) == len(result.trajectories) == 6
    assert all(plan.bank is bank and plan.review for plan in player.groups)
    assert player.probes == []
    assert result.bank is bank


def test_a_family_without_other_tasks_names_the_way_out(make_trajectory):
    player = RecordingPlayer(make_trajectory, [propose("a")])
    lonely = [TRAIN[0], *TRAIN[4:]]
    with pytest.raises(RewardError, match="switch the utility off"):
        asyncio.run(play_round(player, settings(), lonely[:1], lonely, SkillBank(), 0))


def test_a_round_without_reviews_says_so(make_trajectory):
    failed = make_trajectory("g", [None], status=Status.ENV_ERROR)
    assert skillmaster.review_metrics([failed], [], {}) == {"review/turns": 0.0}


def test_the_round_number_moves_the_probes_seeds_and_not_their_tasks(make_trajectory):
    seen = []
    for number in (0, 1):
        player = RecordingPlayer(make_trajectory, [propose("a")])
        asyncio.run(play_round(player, settings(), TRAIN[:1], TRAIN, SkillBank(), number))
        seen.append(player.probes)
    assert {p.task.id for p in seen[0]} == {p.task.id for p in seen[1]}
    assert not {p.seed for p in seen[0]} & {p.seed for p in seen[1]}
    groups = {dataclasses.replace(p, bank=None).group for plans in seen for p in plans}
    assert groups == {"probe/0", "probe/1"}
