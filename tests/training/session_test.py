"""What a run is built from: tasks, policy, optimizer, loss, and what is refused before anything is compiled."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from sage_jax.benchmarks.alfworld import FULL_ROOMS
from sage_jax.config import to_dataclass
from sage_jax.errors import ConfigError, DataError, SkillError
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank, save_bank
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training import loop
from sage_jax.training import session as parts
from sage_jax.training.optimizer import make_schedule, rl_options
from sage_jax.training.players import make_player
from sage_jax.training.policy import load_policy
from sage_jax.training.session import all_tasks, open_session
from sage_jax.training.state import TrainState
from sage_jax.types import RewardResult, Task, Trajectory, Turn

ROOT = pathlib.Path(__file__).parents[2]


def settings(**values) -> RunSettings:
    return to_dataclass(values, RunSettings)


def test_a_missing_model_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="make base-model"):
        load_policy(settings(model=str(tmp_path)))


def test_the_missing_small_published_model_is_told_with_the_command_that_makes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="third_party/smollm2/get.sh` makes models/SmolLM2-135M-Instruct"):
        load_policy(settings(model="models/SmolLM2-135M-Instruct"))


def test_the_policy_keeps_its_parameters_and_computes_in_the_dtype_asked_for(tiny_folder):
    model, params = load_policy(settings(model=str(tiny_folder), compute_dtype="bfloat16"))
    assert model.dtype == "bfloat16"
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}


def test_tasks_are_listed_by_split(tiny_session):
    assert {split: len(tasks) for split, tasks in tiny_session.tasks.items()} == {
        "train": 12,
        "valid_seen": 6,
        "valid_unseen": 6,
    }
    assert tiny_session.eval_splits == ["valid_seen", "valid_unseen"]


def test_compiled_programs_are_kept_beside_the_games(tiny_session, tiny_cache):
    assert jax.config.jax_compilation_cache_dir == str(tiny_cache / "xla")
    assert list((tiny_cache / "xla").iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"games_valid": 0}, "split 'valid_seen' has no tasks: raise games_valid"),
        ({"games_train": 0}, "split 'train' has no tasks: raise games_train"),
        ({"games_train": 1}, "has one training task.*raise games_train or set utility=False"),
        ({"source": "official"}, "json_2.1.1 is missing: set ALFWORLD_DATA"),
    ],
)
def test_tasks_that_a_run_cannot_do_without(tiny_cache, tmp_path, monkeypatch, values, message):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    run = tiny_settings(tmp_path, tmp_path, tiny_cache, **{"games_train": 2, **values})
    error = DataError if "source" in values else ConfigError
    with pytest.raises(error, match=message):
        all_tasks(run)


def test_what_is_not_needed_is_not_asked_for(tiny_cache, tmp_path):
    none = tiny_settings(tmp_path, tmp_path, tiny_cache, games_train=0, eval_splits=("valid_seen",))
    assert set(all_tasks(none, training=False)) == {"valid_seen"}
    one = tiny_settings(tmp_path, tmp_path, tiny_cache, games_train=1, utility=False)
    assert len(all_tasks(one)["train"]) == 6


def test_an_official_tree_without_the_split_is_named(tiny_cache, tiny_session, tmp_path, monkeypatch):
    train = pathlib.Path(tiny_session.tasks["train"][0].payload["root"]) / "train"
    (tmp_path / "json_2.1.1").mkdir()
    (tmp_path / "json_2.1.1" / "train").symlink_to(train)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(DataError, match="no split 'valid_seen'"):
        all_tasks(tiny_settings(tmp_path, tmp_path, tiny_cache, source="auto"))
    run = tiny_settings(tmp_path, tmp_path, tiny_cache, source="auto", eval_splits=())
    assert len(all_tasks(run)["train"]) == 12


def test_full_rooms_are_a_split_of_their_own(tiny_cache, tmp_path):
    run = tiny_settings(tmp_path, tmp_path, tiny_cache, eval_full_rooms=True)
    tasks = all_tasks(run)
    assert len(tasks[FULL_ROOMS]) == len(tasks["valid_unseen"]) == 6
    assert not {t.payload["root"] for t in tasks[FULL_ROOMS]} & {t.payload["root"] for t in tasks["valid_unseen"]}


def test_a_run_may_begin_with_a_bank(tiny_session, tmp_path):
    assert len(tiny_session.start_bank()) == 0
    bank = SkillBank().add(category="general", title="a", principle="b")
    save_bank(bank, tmp_path / "skills.json")
    run = parts.dataclasses.replace(tiny_session, settings=settings(bank=str(tmp_path / "skills.json")))
    assert [skill.title for skill in run.start_bank()] == ["a"]
    with pytest.raises(SkillError, match="missing.json"):
        parts.dataclasses.replace(tiny_session, settings=settings(bank=str(tmp_path / "missing.json"))).start_bank()


def test_the_loss_is_the_one_configured():
    options = parts.loss_options(settings(dual_clip=0, importance_cap=0, clip_high=0.3, temperature=0.7))
    assert (options.dual_clip, options.importance_cap) == (None, None)
    levels = {"ratio_level": "sequence", "aggregation": "sequence_mean"}
    for values, want in (
        ({}, "token"),
        (levels, "sequence"),
        (levels | {"importance_level": "token"}, "token"),
        ({"importance_level": "sequence"}, "sequence"),
    ):
        assert parts.loss_options(settings(**values)).importance_level == want
    assert (options.clip_low, options.clip_high, options.temperature) == (0.2, 0.3, 0.7)


def test_the_schedule_counts_updates_and_not_rounds():
    made = settings(rounds=5, minibatches=4, lr=1.0, lr_schedule="cosine", lr_warmup=2)
    schedule = make_schedule(rl_options(made))
    assert [float(schedule(step)) for step in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert 0 < float(schedule(19)) < 0.1
    assert float(schedule(20)) == pytest.approx(0, abs=1e-6)


def test_act_turns_are_priced_or_free(tiny_session):
    assert tiny_session.player.shaping.not_admissible == -0.5
    run = settings(act_shaping=False)
    player = make_player(run, tiny_session.engine, tiny_session.pool, tiny_session.tokenizer, None)
    assert (player.shaping.not_admissible, player.shaping.no_action) == (0.0, 0.0)
    assert player.shaping.end_episode == tiny_session.player.shaping.end_episode


# Trajectories of fixed ids whose turns have advantages, as a method would hand them over.
def trajectory(seed, *advantages):
    rng = np.random.default_rng(seed)
    ids = [tuple(map(int, rng.integers(11, 300, 6))) for _ in range(2 * len(advantages))]
    turns = tuple(
        Turn("act", ids[2 * i], ids[2 * i + 1], (-2.0,) * 6, starts_context=not i, advantage=advantage)
        for i, advantage in enumerate(advantages)
    )
    return Trajectory(Task("t", "alfworld", "train", "f"), "g", seed, turns, RewardResult(0.0))


BATCH = [trajectory(1, 1.0, -0.5), trajectory(2, -1.0), trajectory(3, 0.7, None)]

UPDATE = """
import json, pathlib, sys
import jax
import numpy as np
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training import loop
from sage_jax.training.session import open_session
from tests.training.session_test import BATCH

def main():
    folder, model, cache = map(pathlib.Path, sys.argv[1:])
    with open_session(tiny_settings(folder, model, cache, mesh="fsdp:4,tensor:2"), folder) as session:
        state = loop.TrainState.create(session.params, session.optimizer)
        state, metrics = loop.learn(session, state, session.params, BATCH, 0, loop.Clock())
        pieces = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state.params)}
        split = sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.params))
        session.engine.update_weights(state.params, 1)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]
    np.savez(folder / "params.npz", *leaves)
    print(json.dumps({"devices": jax.device_count(), "pieces": sorted(pieces), "split": split, **metrics}))

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_an_update_on_eight_devices_is_the_update_on_one(tiny_session, tiny_folder, tiny_cache, tmp_path):
    (tmp_path / "update.py").write_text(UPDATE)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, tmp_path / "update.py", tmp_path, tiny_folder, tiny_cache]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["devices"], told["pieces"]) == (8, [8])
    assert told["split"] >= 8  # kernels and embeddings are cut, not copied

    state = TrainState.create(tiny_session.params, tiny_session.optimizer)
    state, metrics = loop.learn(tiny_session, state, tiny_session.params, BATCH, 0, loop.Clock())
    for name in ("loss/policy", "loss/entropy", "update/grad_norm", "tokens/trained"):
        assert told[name] == pytest.approx(metrics[name], abs=1e-5)
    begin, expected = (jax.tree.leaves(params) for params in (tiny_session.params, state.params))
    assert max(float(abs(b - a).max()) for a, b in zip(begin, expected, strict=True)) > 5e-4
    with np.load(tmp_path / "params.npz") as stored:
        for name, leaf in zip(stored.files, expected, strict=True):
            np.testing.assert_allclose(stored[name], leaf, rtol=0, atol=1e-5)


def test_a_mesh_that_does_not_fit_the_devices_is_refused(tiny_folder, tiny_cache, tmp_path):
    run = tiny_settings(tmp_path, tiny_folder, tiny_cache, mesh="fsdp:4,tensor:2")
    with pytest.raises(ConfigError, match="must multiply to the number of devices, 1"), open_session(run, tmp_path):
        pass
