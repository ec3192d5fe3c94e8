"""A round of SAGE as a run plays it: chains, libraries of programs, rewards and the metrics of both."""

import asyncio

import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import EngineError
from sage_jax.methods import sage
from sage_jax.metrics.names import check_names
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

TASKS = [Task(f"{s}_{i}", "appworld", "train", "f", {"scenario": s, "instruction": s}) for s in "ab" for i in range(3)]
DEFINE = "def solve():\n    return 1\nprint(solve())"


class Coder:
    """Defines its function where it is shown none, else calls it; fails every task of scenario b."""

    def __init__(self):
        self.shown = []

    async def play(self, plan):
        names = [program.name for program in plan.programs]
        self.shown.append((plan.task.id, names, plan.credit))
        code = "print(solve())" if names else DEFINE
        won = plan.task.payload["scenario"] == "a"
        turn = Turn("act", (1,), (2, 3), (0.0, 0.0), True, info={"action": code, "ran": True})
        info = {"success": won, "score": float(won), "ended_by_turn": False, "steps": 1, "tokens": 2}
        info |= {"programs": names, "called": names, "dropped": {}}
        return Trajectory(plan.task, plan.group, plan.seed, (turn,), RewardResult(float(won)), info)


@pytest.fixture
def run():
    values = {"method": "sage", "advantage": "mean", "group_stats": "episodes", "group_size": 2}
    values |= {"benchmark": "appworld_lite", "eval_splits": ("test_normal",)}
    return to_dataclass(values, RunSettings)


def test_a_round_in_which_everything_failed_is_an_error_with_the_first_reason(run):
    class Lost:
        async def play(self, plan):
            info = {"success": False, "score": 0.0, "ended_by_turn": False, "steps": 0, "tokens": 0, "error": "gone"}
            reward = RewardResult(None, Status.TIMEOUT)
            return Trajectory(plan.task, plan.group, plan.seed, (), reward, {**info, "dropped": {}})

    with pytest.raises(EngineError, match="round 5: none of its 2 .*timeout: gone"):
        asyncio.run(sage.play_round(Lost(), run, [TASKS[0]], TASKS, SkillBank(), 4))


def test_what_nothing_is_known_of_is_no_number():
    assert sage.chain_metrics([], []) == {"chain/dropped": 0.0}


def test_a_round(run):
    coder, bank = Coder(), SkillBank()
    result = asyncio.run(sage.play_round(coder, run, [TASKS[0], TASKS[3]], TASKS, bank, 4))
    assert result.bank is bank
    assert len(result.trajectories) == 8
    firsts = [names for task, names, _ in coder.shown if task in ("a_0", "b_0")]
    assert firsts == [[]] * 4
    assert [names for task, names, _ in coder.shown if task not in ("a_0", "b_0")] == [["solve"]] * 4
    assert {credit for _, _, credit in coder.shown} == {"trace"}
    by_scenario = {s: [t.reward.value for t in result.trajectories if t.task.id[0] == s] for s in "ab"}
    assert by_scenario == {"a": [2.0] * 4, "b": [0.0] * 4}
    metrics = result.metrics
    assert metrics["chain/library_size"] == 1.0
    assert metrics["chain/solved"] == 0.5
    assert metrics["chain/use_rate"] == 1.0
    assert metrics["chain/success_used"] == 0.5
    assert metrics["chain/paid_made"] == metrics["chain/paid_used"] == 0.25  # of all tasks
    assert metrics["groups/total"] == 4  # two chains, two positions
    assert metrics["groups/no_spread"] == 4
    check_names(metrics)


def test_an_evaluation_chooses_what_it_shows_and_training_shows_all(run):
    assert sage.training_library(run)().retrieval is None
    assert sage.eval_library(run)().retrieval.method == "scenario"
    assert sage.reward_config(run).bonus == 1.0
