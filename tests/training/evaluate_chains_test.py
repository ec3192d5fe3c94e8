"""Evaluation by scenario: every task once, in order, with a library carried along, and how it is summed up."""

import asyncio
import dataclasses
from collections import Counter

from sage_jax.config import to_dataclass
from sage_jax.metrics.evaluation import EpisodeOutcome, metrics_of, summarise
from sage_jax.metrics.names import check_names
from sage_jax.report.tables import cell_text
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.training.evaluate import evaluate
from sage_jax.training.evaluate_chains import family_chains, has_scenarios, scenario_chains
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

DEFINE = "def solve_it():\n    return 1\nprint(solve_it())"


def task(scenario: str, number: int, family: str = "f") -> Task:
    words = f"count the notes of {scenario}"
    return Task(f"{scenario}_{number}", "appworld", "test_normal", family, {"scenario": scenario, "instruction": words})


TASKS = [task(s, n, f"family_{s}") for s in "abc" for n in (1, 2, 3)]


class Coder:
    """Solves all of scenario a, the first task of b alone; c's second task is lost with its server."""

    def __init__(self):
        self.plans = []

    async def play(self, plan):
        self.plans.append(plan)
        names = [program.name for program in plan.programs or ()]
        lost = plan.task.id == "c_2"
        won = plan.task.id[0] in "ac" or plan.task.id == "b_1"
        turn = Turn("act", (1,), (2,), (0.0,), True, info={"action": "x = 1" if names else DEFINE, "ran": True})
        info = {"success": won and not lost, "score": float(won), "ended_by_turn": False, "steps": 1 if names else 3}
        info |= {"tokens": 10 if names else 100, "programs": names, "called": names, "dropped": {}}
        reward = RewardResult(None, Status.ENV_ERROR) if lost else RewardResult(float(won))
        return Trajectory(plan.task, plan.group, plan.seed, (turn,), reward, info)


def settings(**values) -> RunSettings:
    base = {"method": "sage", "benchmark": "appworld_lite", "eval_splits": ("test_normal",), "eval_episodes": 0}
    return to_dataclass(base | values, RunSettings)


def play(tasks=TASKS, **values):
    coder = Coder()
    outcomes, played = asyncio.run(evaluate(coder, settings(**values), {"test_normal": tasks}, SkillBank()))
    return coder, outcomes, played


def test_every_task_is_played_once_with_and_once_without():
    coder, outcomes, played = play()
    assert Counter((o.retrieval, t.task.id) for o, t in zip(outcomes, played, strict=True)) == Counter(
        (retrieval, t.id) for retrieval in (True, False) for t in TASKS
    )
    shown = {plan.task.id: len(plan.programs) for plan in coder.plans if "/with/" in plan.group}
    assert shown == {t.id: int(not t.id.endswith("1")) for t in TASKS}  # empty at the start of a scenario
    assert all(plan.programs is None for plan in coder.plans if "/without/" in plan.group)


def test_grpo_plays_without_a_library_alone():
    coder, outcomes, _ = play(method="grpo")
    assert len(outcomes) == len(TASKS)
    assert not any(o.retrieval for o in outcomes)
    assert all(plan.programs is None for plan in coder.plans)


def test_a_retrieval_beyond_the_scenario_carries_skills_through_the_whole_split():
    coder, outcomes, _ = play(program_retrieval="skill_embedding", concurrency=9)
    plans = [plan for plan in coder.plans if "/with/" in plan.group]
    assert [plan.task.id for plan in plans] == [t.id for t in TASKS]  # one after another
    assert [len(plan.programs) for plan in plans] == [0] + [1] * 8
    assert sum(o.retrieval for o in outcomes) == 9


# With the library, of scenario a 3 of 3 solved, of b 1 of 3, of c 2 of 2 and one lost: 6 of 8 tasks. SGC: a yes, b no,
# c is not whole: 1 of 2. Shown a skill and not lost: a_2, a_3, b_2, b_3, c_3, all used; solved of those: a_2, a_3, c_3.
# Steps: the first of each scenario 3, the others 1: (3 * 3 + 5) / 8.
def test_the_rows_by_hand():
    _, outcomes, _ = play()
    row = next(r for r in summarise(outcomes) if r.family == "all" and r.retrieval)
    assert (row.n, row.failed, row.success) == (8, 1, 6 / 8)
    assert (row.scenario_success, row.scenarios) == (1 / 2, 2)
    assert (row.use_rate, row.used_success, row.library) == (1.0, 3 / 5, 1.0)
    assert row.steps == 14 / 8
    assert row.tokens == (3 * 100 + 5 * 10) / 8
    plain = next(r for r in summarise(outcomes) if r.family == "all" and not r.retrieval)
    assert (plain.use_rate, plain.library, plain.scenario_success) == (None, None, 1 / 2)
    check_names(metrics_of([row, plain]))
    first, second = cell_text(row)
    assert "SGC 50" in first
    assert "used 100 % (60)" in second


def test_tasks_without_scenarios_have_no_such_numbers():
    row = summarise([EpisodeOutcome("valid", False, "f", True, 1, 1)])[0]
    assert (row.scenario_success, row.scenarios, row.use_rate, row.library) == (None,) * 4
    assert "SGC" not in cell_text(row)[0]
    assert not [name for name in metrics_of([row]) if "scenario" in name]


def test_scenarios_are_taken_whole_and_evenly():
    tasks = [task(f"{family}{n}", k, family) for family in "xy" for n in range(4) for k in range(3)]
    assert sum(len(chain.tasks) for chain in scenario_chains(tasks, 0)) == 24
    some = scenario_chains(tasks, 13)
    assert [len(chain.tasks) for chain in some] == [3] * 4
    assert Counter(chain.tasks[0].family for chain in some) == {"x": 2, "y": 2}
    assert len(scenario_chains(tasks, 1)) == 1
    assert not has_scenarios({"a": [dataclasses.replace(tasks[0], payload={})]})


def test_the_seeds_of_an_evaluation_do_not_depend_on_its_size():
    seeds = {plan.task.id: plan.seed for plan in play()[0].plans}
    fewer = {plan.task.id: plan.seed for plan in play(tasks=TASKS[3:])[0].plans}
    assert fewer.items() <= seeds.items()


def test_a_run_with_a_bank_shows_it_in_its_scenarios():
    bank, coder = SkillBank().add(category="general", title="a", principle="read the documents"), Coder()
    run = settings(method="skillmaster")
    outcomes, _ = asyncio.run(evaluate(coder, run, {"test_normal": TASKS}, bank))
    assert [plan.bank for plan in coder.plans] == [bank] * len(TASKS) + [None] * len(TASKS)
    assert [outcome.retrieval for outcome in outcomes] == [True] * len(TASKS) + [False] * len(TASKS)
    assert {outcome.used for outcome in outcomes} == {outcome.library for outcome in outcomes} == {None}


def test_families_are_cut_into_chains():
    tasks = [Task(f"t{i}", "alfworld", "valid", "ab"[i % 2]) for i in range(7)]
    chains = family_chains(tasks, 2)
    assert [(chain.key, [task.id for task in chain.tasks]) for chain in chains] == [
        ("a~0", ["t0", "t2"]), ("a~2", ["t4", "t6"]), ("b~0", ["t1", "t3"]), ("b~2", ["t5"]),
    ]  # fmt: skip
