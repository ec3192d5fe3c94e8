"""A small finished run, written by the same writers that a real run uses."""

import json

import pytest

from sage_jax.metrics import EpisodeOutcome, MetricsWriter, open_run_folder, summarise, write_rows, write_trajectories
from sage_jax.skills import Provenance, SkillBank
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

TASK = Task(id="game-7", benchmark="alfworld", split="train", family="heat")


def make_trajectory(group: str, value: float | None, seed: int = 0) -> Trajectory:
    act = Turn("act", (1, 2), (3,), (-0.5,), True, advantage=0.5, info={"observation": "<b>You see a mug</b>"})
    review = Turn("review", (4,), (5, 6), (-0.1, -0.2), False, reward=RewardResult(0.1), advantage=-0.25)
    reward = RewardResult(None, Status.ENV_ERROR) if value is None else RewardResult(value, parts={"won": value})
    return Trajectory(TASK, group, seed, (act, review), reward, {"success": bool(value)})


def make_bank() -> SkillBank:
    bank = SkillBank().add(category="general", title="Look first", principle="Look around before acting.")
    bank = bank.update(
        "gen_1",
        title="Look first",
        principle="Open what is closed.",
        when_to_apply="when lost",
        provenance=Provenance(task_id="game-7", policy_version=3, step=3, utility=0.25, reason="drawer was closed"),
    )
    bank = bank.add(category="heat", title="Heat it", principle="Use the microwave.")
    return bank.remove(bank.category("heat")[0].id)


@pytest.fixture
def run_dir(tmp_path):
    folder = open_run_folder(tmp_path / "run", {"name": "demo <run>", "seed": 3}, argv=["python", "-m", "x"])
    with MetricsWriter(folder, tensorboard=False) as writer:
        for step in range(4):
            values = {"reward/mean": step / 4, "reward/success": step / 4, "loss/total": float("nan")}
            values |= {"review/added": 0.25, "review/kept": 0.75, "utility/mean": 0.1 * step, "status/ok": 8}
            writer.write(step, values)
    for tag, wins in (("after", 3), ("before", 1)):
        episodes = [
            EpisodeOutcome("valid_unseen", skills, family, number < wins, 10 + number, 100)
            for skills in (True, False)
            for family in ("heat", "cool")
            for number in range(4)
        ]
        write_rows(folder / "eval" / f"{tag}.json", summarise(episodes))
    write_trajectories(folder, 2, [make_trajectory("old", 0.0)])
    best_and_worst = [make_trajectory("wide", 1.0, 1), make_trajectory("wide", 0.0, 2), make_trajectory("lost", None)]
    write_trajectories(folder, 3, best_and_worst, decode=lambda ids: f"text of {list(ids)}")
    (folder / "bank.json").write_text(json.dumps(make_bank().snapshot()))
    return folder
