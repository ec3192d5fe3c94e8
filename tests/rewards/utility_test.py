"""Counterfactual utility: probe choice, the formula, and the plan that shares episodes."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_jax.errors import ConfigError, RewardError
from sage_jax.rewards import (
    NO_EDIT,
    ProbeCache,
    ProbeKey,
    ProbeRequest,
    UtilityConfig,
    assemble,
    plan_probes,
    probe_score,
    select_probes,
    utility,
)
from sage_jax.types import RewardResult, Status, Task


def _task(name: str, family: str = "heat", split: str = "train", benchmark: str = "alfworld") -> Task:
    return Task(id=name, benchmark=benchmark, split=split, family=family)


TRAIN = tuple(_task(f"{family}{i}", family) for family in ("heat", "cool") for i in range(8))
LOST = RewardResult(None, Status.TIMEOUT)


def _scores(*values):
    return [LOST if v is None else RewardResult(float(v)) for v in values]


# The choice of probes.


def test_probes_are_of_the_family_and_never_the_task_itself():
    probes = select_probes(TRAIN[0], TRAIN, k=4, seed=0)
    assert len({p.id for p in probes}) == 4
    assert all(p.family == "heat" and p.id != "heat0" for p in probes)


def test_the_choice_depends_on_seed_and_task_not_on_the_order_of_the_tasks():
    probes = select_probes(TRAIN[0], TRAIN, k=4, seed=0)
    assert select_probes(TRAIN[0], TRAIN[::-1], k=4, seed=0) == probes
    assert select_probes(TRAIN[0], TRAIN + TRAIN, k=4, seed=0) == probes
    by_seed = [select_probes(TRAIN[0], TRAIN, k=4, seed=s) for s in range(20)]
    by_task = [select_probes(t, TRAIN, k=4, seed=0) for t in TRAIN[:8]]
    assert len({tuple(p.id for p in probes) for probes in by_seed}) > 10
    assert len({tuple(p.id for p in probes) for probes in by_task}) > 4


def test_every_candidate_is_chosen_about_equally_often():
    counts = dict.fromkeys((t.id for t in TRAIN[1:8]), 0)
    for seed in range(700):
        for probe in select_probes(TRAIN[0], TRAIN, k=1, seed=seed):
            counts[probe.id] += 1
    # Binomial(700, 1/7): mean 100, deviation 9.3.
    assert all(60 < n < 140 for n in counts.values())


def test_tasks_about_the_same_thing_come_first_when_asked():
    about = [dataclasses.replace(t, payload={"topic": "Mug" if i % 6 == 0 else "Cup"}) for i, t in enumerate(TRAIN)]
    mugs = {t.id for t in about if t.payload["topic"] == "Mug"} - {"heat0"}
    assert {m[:-1] for m in mugs} == {"heat", "cool"}  # a thing is looked for in every family
    for seed in range(20):
        probes = select_probes(about[0], about, k=4, seed=seed, by_topic=True)
        assert {p.id for p in probes[:2]} == mugs
        assert all(p.family == "heat" for p in probes[2:])
        assert len({p.id for p in probes}) == 4
    # Tasks without a topic are chosen from the family.
    assert all(p.family == "heat" for p in select_probes(TRAIN[0], TRAIN, k=4, seed=0, by_topic=True))


def test_a_small_family_gives_what_it_has():
    assert len(select_probes(TRAIN[0], TRAIN[:3], k=4, seed=0)) == 2


def test_a_family_without_another_task_is_an_error():
    with pytest.raises(RewardError, match="'heat0'.*'heat'.*'train'"):
        select_probes(TRAIN[0], TRAIN[:1], k=4, seed=0)


_tasks = st.lists(
    st.builds(
        _task,
        st.sampled_from([f"t{i}" for i in range(12)]),
        st.sampled_from(["heat", "cool"]),
        st.sampled_from(["train", "valid_seen", "valid_unseen"]),
        st.sampled_from(["alfworld", "webshop"]),
    ),
    min_size=1,
    max_size=30,
)


@given(_tasks, st.integers(1, 6), st.integers(0, 99), st.data())
def test_no_probe_leaks(tasks, k, seed, data):
    task = data.draw(st.sampled_from(tasks))
    fitting = {
        t.id
        for t in tasks
        if (t.benchmark, t.family, t.split) == (task.benchmark, task.family, "train") and t.id != task.id
    }
    if not fitting:
        with pytest.raises(RewardError):
            select_probes(task, tasks, k=k, seed=seed)
        return
    probes = select_probes(task, tasks, k=k, seed=seed)
    assert len(probes) == len({p.id for p in probes}) == min(k, len(fitting))
    assert {p.id for p in probes} <= fitting
    assert {p.split for p in probes} == {"train"}


# The score and the formula.


@pytest.mark.parametrize(
    ("success", "steps", "value"),
    [(True, 10, 1.8), (True, 50, 1.0), (True, 0, 2.0), (False, 10, 0.0), (False, 50, 0.0)],
)
def test_scores(success, steps, value):
    assert probe_score(success=success, steps=steps, max_steps=50).value == pytest.approx(value)


def test_a_broken_probe_has_no_score_and_wrong_steps_are_refused():
    assert probe_score(success=False, steps=3, max_steps=50, status=Status.ENV_ERROR).value is None
    assert probe_score(success=False, steps=50, max_steps=50, status=Status.TRUNCATED).value == 0.0
    with pytest.raises(RewardError, match="51 steps of at most 50"):
        probe_score(success=True, steps=51, max_steps=50)


def test_the_utility_by_hand():
    # deltas 1.8 - 0 = 1.8, 1.2 - 1.5 = -0.3, 0, 1.4 - 1.0 = 0.4; mean 1.9 / 4 = 0.475; signs 2 - 1 = 1, 0.3 * 1 / 4.
    result = utility(_scores(1.8, 1.2, 0.0, 1.4), _scores(0.0, 1.5, 0.0, 1.0))
    assert result.value == pytest.approx(0.475 + 0.075)
    assert result.parts == {"mean_delta": pytest.approx(0.475), "sign_bonus": pytest.approx(0.075)}


def test_clip_is_the_released_codes_floor():
    worse = (_scores(0.0, 0.0), _scores(1.0, 0.0))  # mean -0.5, signs -1: -0.5 - 0.15
    assert utility(*worse).value == pytest.approx(-0.65)
    clipped = utility(*worse, UtilityConfig(clip=True))
    assert clipped.value == 0.0
    assert sum(clipped.parts.values()) == pytest.approx(0.0)
    better = (worse[1], worse[0])
    assert utility(*better, UtilityConfig(clip=True)) == utility(*better)


def test_a_lost_probe_leaves_mean_and_count():
    # Probe 2 has no edited score, probe 3 no base score: deltas 1.0 and -0.5, mean 0.25, signs 0.
    result = utility(_scores(1.0, None, 1.0, 0.5), _scores(0.0, 1.0, None, 1.0))
    assert result.value == pytest.approx(0.25)
    assert utility(_scores(1.0, None), _scores(0.0, 1.0)).value == pytest.approx(1.3)


def test_without_any_probe_left_there_is_no_utility():
    result = utility(_scores(None, 1.0), _scores(1.0, None))
    assert (result.value, result.status) == (None, Status.TIMEOUT)
    with pytest.raises(RewardError, match="at least one probe"):
        utility([], [])


def _reference(edited, base, c, clip):
    """The paper's formula with loops in float64."""
    total, positive, negative, count = np.float64(0), 0, 0, 0
    for e, b in zip(edited, base, strict=True):
        if e is None or b is None:
            continue
        delta = np.float64(e) - np.float64(b)
        total += delta
        count += 1
        if delta > 0:
            positive += 1
        if delta < 0:
            negative += 1
    if count == 0:
        return None
    value = total / count + c * (positive - negative) / count
    return max(np.float64(0), value) if clip else value


_score = st.none() | st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0, 2)
_pairs = st.lists(st.tuples(_score, _score), min_size=1, max_size=8)


@given(_pairs, st.floats(0, 1), st.booleans())
def test_the_utility_is_that_of_a_float64_reference(pairs, c, clip):
    edited, base = zip(*pairs, strict=True)
    config = UtilityConfig(sign_weight=c, clip=clip)
    result = utility(_scores(*edited), _scores(*base), config)
    expected = _reference(edited, base, c, clip)
    if expected is None:
        assert result.value is None
        return
    assert result.value == pytest.approx(float(expected), abs=1e-12)
    assert sum(result.parts.values()) == pytest.approx(result.value, abs=1e-12)
    # Swapping the arms turns the sign; the order of the probes is nothing.
    free = UtilityConfig(sign_weight=c)
    swapped = utility(_scores(*base), _scores(*edited), free).value
    assert swapped == pytest.approx(-utility(_scores(*edited), _scores(*base), free).value, abs=1e-12)
    assert utility(_scores(*edited[::-1]), _scores(*base[::-1]), config).value == pytest.approx(result.value, abs=1e-12)


@pytest.mark.parametrize(("change", "message"), [({"probes": 0}, "probes is 0"), ({"sign_weight": -1.0}, "is -1")])
def test_a_wrong_config_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        UtilityConfig(**change)


# The plan.


def _plan(requests, cache=None, *, policy_version=1, step=5, base="B", seed=0):
    cache = ProbeCache() if cache is None else cache
    return plan_probes(requests, base=base, policy_version=policy_version, step=step, seed=seed, cache=cache)


def _play(plan, cache, score):
    for episode in plan.episodes:
        cache.put(episode.key, score(episode))


HEAT = TRAIN[1:5]
COOL = TRAIN[9:13]


def test_one_edit_runs_both_arms():
    plan = _plan([ProbeRequest("r0", "E1", HEAT)])
    assert (plan.requested, plan.run, plan.saved) == (8, 8, 0)
    assert {(e.key.bank, e.task.id) for e in plan.episodes} == {(b, t.id) for b in ("E1", "B") for t in HEAT}
    assert all(e.key.task_id == e.task.id for e in plan.episodes)


def test_counts_by_hand():
    # One task of 4 rollouts, K = 4: edits E1, E1, E2 and an update that reads like B. Both arms of all: 4 * 8 = 32.
    # Needed: E1 4, E2 4, B 4 (shared) = 12. A second task with its own probes: E3 4, B 4 = 8.
    heat = [ProbeRequest("r0", "E1", HEAT), ProbeRequest("r1", "E1", HEAT), ProbeRequest("r2", "E2", HEAT)]
    cool = [ProbeRequest("r4", "E3", COOL)]
    cache = ProbeCache()
    plan = _plan([*heat, ProbeRequest("r3", "B", HEAT), *cool], cache)
    assert (plan.requested, plan.run, plan.saved) == (40, 20, 20)
    assert len({e.key for e in plan.episodes}) == 20
    # r1 finds 4 of E1 and 4 of B, r2 finds 4 of B; r3 asks for nothing.
    assert (cache.hits, cache.misses) == (12, 20)
    assert len(cache) == 0


def test_a_step_of_the_papers_size():
    # 8 tasks x 8 rollouts, all different edits: 512 episodes as released, 64 * 4 + 8 * 4 = 288 here.
    requests = [
        ProbeRequest(f"{t}.{r}", f"E{t}.{r}", tuple(_task(f"p{t}.{k}") for k in range(4)))
        for t in range(8)
        for r in range(8)
    ]
    plan = _plan(requests)
    assert (plan.requested, plan.run, plan.saved) == (512, 288, 224)


def test_played_episodes_are_not_played_again():
    cache = ProbeCache()
    _play(_plan([ProbeRequest("r0", "E1", HEAT)], cache), cache, lambda e: RewardResult(1.0))
    again = _plan([ProbeRequest("r0", "E1", HEAT), ProbeRequest("r1", "E2", HEAT)], cache)
    assert {e.key.bank for e in again.episodes} == {"E2"}
    assert (again.requested, again.run, again.saved) == (16, 4, 12)


@pytest.mark.parametrize("change", [{"policy_version": 2}, {"step": 6}, {"seed": 1}, {"base": "C"}])
def test_another_policy_step_seed_or_bank_is_played_anew(change):
    cache = ProbeCache()
    _play(_plan([ProbeRequest("r0", "E1", HEAT)], cache), cache, lambda e: RewardResult(1.0))
    plan = _plan([ProbeRequest("r0", "E1", HEAT)], cache, **change)
    assert plan.run == (4 if "base" in change else 8)


def test_both_arms_have_common_random_numbers():
    plan = _plan([ProbeRequest("r0", "E1", HEAT), ProbeRequest("r1", "E2", HEAT)])
    seeds = {}
    for episode in plan.episodes:
        seeds.setdefault(episode.task.id, set()).add(episode.key.seed)
    assert all(len(found) == 1 for found in seeds.values())
    assert len({next(iter(found)) for found in seeds.values()}) == 4
    other = _plan([ProbeRequest("r0", "E1", HEAT)], step=6)
    assert not {e.key.seed for e in other.episodes} & {e.key.seed for e in plan.episodes}


def test_from_plan_to_utilities():
    cache = ProbeCache()
    requests = [
        ProbeRequest("better", "E1", HEAT),
        ProbeRequest("same edit", "E1", HEAT),
        ProbeRequest("worse", "E2", HEAT),
        ProbeRequest("nothing", "B", HEAT),
        ProbeRequest("lost", "E3", COOL),
    ]
    plan = _plan(requests, cache)
    value = {"B": 1.0, "E1": 1.5, "E2": 0.0}
    _play(plan, cache, lambda e: RewardResult(value[e.key.bank]) if e.key.bank in value else LOST)
    result = assemble(plan, cache, UtilityConfig())
    assert list(result) == [r.name for r in requests]
    assert result["better"].value == result["same edit"].value == pytest.approx(0.5 + 0.3)
    assert result["worse"].value == pytest.approx(-1.0 - 0.3)
    assert result["nothing"] == NO_EDIT
    assert (result["lost"].value, result["lost"].status) == (None, Status.TIMEOUT)


def test_the_order_of_the_requests_changes_no_utility():
    def play(requests):
        cache = ProbeCache()
        plan = _plan(requests, cache)
        # A score that depends on everything the key holds, and on nothing else.
        _play(plan, cache, lambda e: RewardResult(sum(map(ord, f"{e.key}")) % 97 / 50))
        return assemble(plan, cache)

    requests = [ProbeRequest(f"r{i}", f"E{i % 3}", (HEAT, COOL)[i % 2]) for i in range(6)]
    assert play(requests) == play(requests[::-1])
    alone = {r.name: play([r])[r.name] for r in requests}
    assert play(requests) == alone


def test_a_failed_episode_is_used_once_and_played_again_later():
    cache = ProbeCache()
    requests = [ProbeRequest("r0", "E1", HEAT[:1])]
    plan = _plan(requests, cache)
    _play(plan, cache, lambda e: LOST)
    assert assemble(plan, cache)["r0"].value is None
    later = _plan(requests, cache)
    assert later.run == 2
    _play(later, cache, lambda e: RewardResult(1.0))
    assert assemble(later, cache)["r0"].value == 0.0


def test_an_episode_that_was_not_played_is_an_error():
    cache = ProbeCache()
    plan = _plan([ProbeRequest("r0", "E1", HEAT)], cache)
    cache.put(plan.episodes[0].key, RewardResult(1.0))
    with pytest.raises(RewardError, match="has no score"):
        assemble(plan, cache)


def test_two_requests_of_one_name_are_refused():
    with pytest.raises(RewardError, match="share the name 'r0'"):
        _plan([ProbeRequest("r0", "E1", HEAT), ProbeRequest("r0", "E2", HEAT)])


def test_old_policies_are_forgotten():
    cache = ProbeCache()
    key = ProbeKey("t", "B", 1, 0)
    cache.put(key, RewardResult(1.0))
    cache.put(dataclasses.replace(key, policy_version=2), RewardResult(1.0))
    cache.drop_before(2)
    assert len(cache) == 1
    assert not cache.has_value(key)
