import os
import pathlib
import shutil

import pytest

from sage_jax.data.tasks import AlfworldSource, load_tasks
from sage_jax.envs.alfworld import FAMILIES, AlfworldFactory
from sage_jax.errors import ConfigError, DataError

GAMES = {"seed": 5, "train": 1, "valid_seen": 0, "valid_unseen": 1, "max_receptacles": 6, "max_objects": 6}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def generated(cache):
    return load_tasks(AlfworldSource(source="generated", cache=str(cache), games=GAMES, processes=0))


@pytest.fixture
def official(tmp_path, monkeypatch, generated) -> pathlib.Path:
    """A small tree in the official layout, with a task kind that text games leave out."""
    root = pathlib.Path(generated["train"][0].payload["root"])
    tree = tmp_path / "json_2.1.1"
    shutil.copytree(root / "train", tree / "valid_seen")
    (tree / "valid_seen" / "pick_and_place_with_movable_recep-Mug-Plate-Desk-301" / "trial_T1").mkdir(parents=True)
    (tree / "valid_seen" / "pick_cool_then_place_in_recep-AppleSliced-None-Desk-1" / "trial_T1").mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    return tree


def seen(source: str = "auto", **options) -> tuple:
    return load_tasks(AlfworldSource(source=source, splits=("valid_seen",), **options))["valid_seen"]


def test_generated_splits_have_stable_ids_and_no_empty_split(generated, cache):
    assert set(generated) == {"train", "valid_unseen"}
    for split, tasks in generated.items():
        assert sorted(task.family for task in tasks) == sorted(FAMILIES)
        assert all(task.id.startswith(f"alfworld/{split}/{task.family}-") for task in tasks)
        assert all(task.benchmark == "alfworld" and task.split == split for task in tasks)
        assert str(cache) not in "".join(task.id for task in tasks)
    assert load_tasks(AlfworldSource(source="generated", cache=str(cache), games=GAMES)) == generated


def test_an_official_tree_is_used_when_it_is_there(official):
    tasks = seen()
    assert len(tasks) == len(FAMILIES)
    assert {task.payload["root"] for task in tasks} == {str(official)}
    assert seen("official") == tasks


def test_without_an_official_tree_games_are_generated(monkeypatch, tmp_path, cache, generated):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert load_tasks(AlfworldSource(cache=str(cache), games=GAMES)) == generated
    with pytest.raises(DataError, match=r"json_2\.1\.1 is missing.*ALFWORLD_DATA"):
        load_tasks(AlfworldSource(source="official"))


@pytest.mark.parametrize("file", ["game.tw-pddl", "traj_data.json"])
def test_a_missing_file_is_named(official, file):
    victim = next(official.rglob(file))
    victim.unlink()
    with pytest.raises(DataError, match=f"{victim.parent.name}/{file} is missing"):
        seen()
    if file == "game.tw-pddl":
        assert len(seen(allow_missing=True)) == len(FAMILIES) - 1


def test_a_missing_or_empty_split_is_named(official):
    with pytest.raises(DataError, match="valid_unseen is missing"):
        load_tasks(AlfworldSource(splits=("valid_seen", "valid_unseen")))
    (official / "valid_unseen").mkdir()
    with pytest.raises(DataError, match="valid_unseen holds no games"):
        load_tasks(AlfworldSource(splits=("valid_unseen",)))


def test_wrong_settings_are_named(tmp_path):
    with pytest.raises(ConfigError, match="source='web'"):
        AlfworldSource(source="web")
    with pytest.raises(ConfigError, match="'test'"):
        AlfworldSource(splits=("test",))
    with pytest.raises(ConfigError, match="max_recepts.*max_receptacles"):
        load_tasks(AlfworldSource(source="generated", cache=str(tmp_path), games={"max_recepts": 3}))


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SAGE_JAX_CACHE", str(tmp_path))
    assert AlfworldSource().cache_folder == tmp_path
    assert AlfworldSource(cache="/elsewhere").cache_folder == pathlib.Path("/elsewhere")


@pytest.mark.skipif("SAGE_JAX_ALFWORLD_OFFICIAL" not in os.environ, reason="SAGE_JAX_ALFWORLD_OFFICIAL is not set")
def test_the_official_games_of_this_machine_run(monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", os.environ["SAGE_JAX_ALFWORLD_OFFICIAL"])
    env = AlfworldFactory()()
    tasks = seen("official")
    solved = 0
    for task in tasks:
        observation = env.reset(task, 0, expert=True)
        for _ in range(100):
            if observation.info["expert_action"] is None:
                break
            observation = env.step(observation.info["expert_action"])
        solved += observation.won
    env.close()
    assert solved >= 0.95 * len(tasks)
