import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

from sage_jax.envs.alfworld import FAMILIES, problem, rooms
from sage_jax.envs.alfworld.dataset import DATA_FOLDER, MANIFEST, TRANSLATIONS, dataset_name, ensure_games
from sage_jax.envs.alfworld.games import SPLITS, GameMaker, GameOptions
from sage_jax.errors import ConfigError, DataError

TINY = GameOptions(seed=9, train=1, valid_seen=0, valid_unseen=0, max_receptacles=6, min_objects=1, max_objects=2)


def tree_hash(root: pathlib.Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def scene(folder: str) -> int:
    return int(folder.partition("/")[0].rpartition("-")[2])


def test_every_split_has_every_family(game_root):
    manifest = json.loads((game_root / MANIFEST).read_text())
    counts = {(s, f): 0 for s in SPLITS for f in FAMILIES}
    for game in manifest["games"]:
        counts[game["split"], game["family"]] += 1
        assert (game_root / DATA_FOLDER / game["split"] / game["folder"] / "game.tw-pddl").is_file()
        assert 1 <= game["expert_steps"] <= manifest["options"]["expert_steps"]
    assert all(n == manifest["options"][split] for (split, _), n in counts.items())


def test_unseen_rooms_are_never_trained_on(game_root):
    games = json.loads((game_root / MANIFEST).read_text())["games"]
    used = {split: {scene(g["folder"]) for g in games if g["split"] == split} for split in SPLITS}
    options = GameOptions(seed=3)
    assert used["valid_unseen"] <= set(options.scenes("valid_unseen"))
    assert used["train"] | used["valid_seen"] <= set(options.scenes("train"))
    assert not set(options.scenes("valid_unseen")) & set(options.scenes("train"))
    assert options.scenes("train") == options.scenes("valid_seen")
    for numbers in rooms.KINDS.values():
        assert len(set(numbers) & set(options.scenes("valid_unseen"))) == options.unseen_rooms


def test_objects_lie_where_they_belong(game_root):
    for path in (game_root / DATA_FOLDER).rglob("initial_state.pddl"):
        for line in path.read_text().splitlines():
            words = line.strip(" ()").split()
            if words[:1] == ["inReceptacle"] and words[1][:1] != "?":
                thing, host = (word.replace("_bar_", "|") for word in words[1:])
                thing, host = thing.partition("|")[0], rooms.receptacle_class(host)
                assert thing in rooms.may_hold(host) or host in rooms.LAMP_HOSTS.get(thing, ())


def layouts(options: GameOptions, count: int = 60):
    for number in range(count):
        rng = random.Random(number)
        room = rooms.load_room(rng.choice(options.scenes("train")))
        goal = problem.Goal("pick_and_place_simple", rng.choice(room.objects), target="nowhere")
        layout = problem.draw_layout(rng, room, goal, options)
        if layout is not None:
            yield layout


def at_usual_places(options: GameOptions) -> float:
    """Returns the share of objects in the class that comes first among those of the room that may hold them."""
    hits = total = 0
    for layout in layouts(options):
        here = {rooms.receptacle_class(name) for name in layout.receptacles}
        for name, host in layout.objects.items():
            thing = name.partition("|")[0]
            able = [c for c in options.usual_places(thing) if c in here and thing in rooms.may_hold(c)]
            hits += rooms.receptacle_class(host) == able[0]
            total += 1
    assert total > 100
    return hits / total


def test_people_of_a_world_have_habits():
    assert at_usual_places(GameOptions(seed=5, habit=1.0)) == 1.0
    assert at_usual_places(GameOptions(seed=5, habit=0.5)) > at_usual_places(GameOptions(seed=5)) + 0.2
    orders = [GameOptions(seed=seed).usual_places(thing) for seed, thing in ((5, "Mug"), (6, "Mug"), (5, "Pan"))]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len(set(orders)) == 3


def test_small_rooms_are_small(game_root):
    for path in (game_root / DATA_FOLDER).rglob("initial_state.pddl"):
        assert 2 <= len(re.findall(r"\(receptacleAtLocation \w", path.read_text())) <= 8


def test_the_bytes_depend_on_nothing_but_the_options(tmp_path):
    here = ensure_games(TINY, tmp_path / "here", processes=0)
    seen = []
    there = ensure_games(
        TINY, tmp_path / "there", processes=2, progress=lambda done, wanted: seen.append((done, wanted))
    )
    assert tree_hash(here) == tree_hash(there)
    assert seen == [(n, len(FAMILIES)) for n in range(1, len(FAMILIES) + 1)]


def test_the_bytes_do_not_depend_on_string_hashing(tmp_path):
    code = (
        "import hashlib\nfrom sage_jax.envs.alfworld.games import *\n"
        f"made = GameMaker({TINY!r}).make('train', 'pick_two_obj_and_place', 0)\n"
        "print(hashlib.sha256(repr(sorted(made.files.items())).encode()).hexdigest(), made.expert_steps)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_finished_set_is_reused_and_an_unfinished_one_is_not(tmp_path, monkeypatch):
    first = ensure_games(TINY, tmp_path, processes=0)
    made = (first / MANIFEST).stat().st_mtime_ns
    assert ensure_games(TINY, tmp_path, processes=0) == first
    assert (first / MANIFEST).stat().st_mtime_ns == made
    assert {path.name for path in tmp_path.iterdir()} == {first.name, TRANSLATIONS}

    def fail(*args):
        raise RuntimeError("power cut")

    other = GameOptions(**{**TINY.__dict__, "seed": 10})
    monkeypatch.setattr(GameMaker, "make", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        ensure_games(other, tmp_path, processes=0)
    assert not (tmp_path / dataset_name(other)).exists()
    assert {path.name for path in tmp_path.iterdir()} == {first.name, TRANSLATIONS}


def test_other_options_are_another_folder():
    names = {dataset_name(GameOptions(seed=seed, max_receptacles=m)) for seed in (0, 1) for m in (12, None)}
    assert len(names) == 4


def test_a_game_that_cannot_be_is_said_to_be_so(monkeypatch):
    maker = GameMaker(TINY)
    monkeypatch.setattr(maker, "_attempt", lambda *args: None)
    with pytest.raises(DataError, match="expert_steps"):
        maker.make("train", FAMILIES[0], 0)
    maker.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"train": -1},
        {"unseen_rooms": 0},
        {"unseen_rooms": 25},
        {"max_receptacles": 3},
        {"min_objects": 5, "max_objects": 4},
        {"expert_steps": 2},
        {"habit": 1.5},
    ],
)
def test_wrong_options_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GameOptions(**wrong)


@pytest.mark.slow
def test_full_rooms_can_be_made():
    maker = GameMaker(GameOptions(max_receptacles=None, expert_steps=50))
    for family in FAMILIES:
        assert maker.make("valid_unseen", family, 0).expert_steps <= 50
    maker.close()
