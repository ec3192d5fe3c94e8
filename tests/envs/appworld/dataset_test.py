import json
import os
import pathlib

import pytest

from sage_jax.envs.appworld import AppworldFactory, Home, default_home, load_tasks, scenario_of, solution_of
from sage_jax.envs.appworld.server import _copy_plain
from sage_jax.errors import ConfigError, DataError, EnvError


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data root in the official layout, with what `load_tasks` reads of it."""
    (tmp_path / "data/datasets").mkdir(parents=True)
    (tmp_path / "data/datasets/dev.txt").write_text("abc_1\nabc_2\n")
    for number in (1, 2):
        folder = tmp_path / f"data/tasks/abc_{number}"
        (folder / "ground_truth").mkdir(parents=True)
        specs = {"instruction": f"do {number}", "supervisor": {"email": "a@b.c"}}
        (folder / "specs.json").write_text(json.dumps(specs))
        (folder / "ground_truth/metadata.json").write_text(json.dumps({"difficulty": number}))
    return tmp_path


def test_tasks_of_an_official_root(root: pathlib.Path):
    (first, second) = load_tasks(str(root))["dev"]
    assert (first.id, first.family, second.family) == ("abc_1", "level_1", "level_2")
    assert first.payload["instruction"] == "do 1"
    assert first.payload["scenario"] == scenario_of("abc_1") == "abc"
    assert first.payload["twin"] is False
    assert solution_of(str(root), "abc_1") is None


def test_a_payload_holds_nothing_of_the_ground_truth(root: pathlib.Path):
    (root / "data/tasks/abc_1/ground_truth/answer.json").write_text('"secret"')
    assert "secret" not in repr(load_tasks(str(root)))


def test_a_root_without_tasks_or_with_a_hole_is_named(root: pathlib.Path, tmp_path: pathlib.Path):
    (root / "data/tasks/abc_2/specs.json").unlink()
    with pytest.raises(DataError, match="abc_2"):
        load_tasks(str(root))
    with pytest.raises(DataError, match=r"train\.txt"):
        load_tasks(str(tmp_path / "nothing"))


def test_a_missing_installation_says_how_to_get_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DataError, match=r"third_party/appworld/install\.sh"):
        Home(str(tmp_path))
    monkeypatch.setenv("SAGE_JAX_APPWORLD", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="gone"):
        default_home()


def test_what_an_agent_could_write_is_copied_with_care(tmp_path: pathlib.Path):
    source = tmp_path / "dbs"
    source.mkdir()
    (source / "a.db").write_bytes(b"x" * 10)
    _copy_plain(source, tmp_path / "copied")
    assert (tmp_path / "copied/a.db").read_bytes() == b"x" * 10
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for number, make in enumerate((lambda p: p.symlink_to(secret), lambda p: os.mkfifo(p), lambda p: p.mkdir())):
        bad = source / "bad"
        make(bad)
        with pytest.raises(EnvError, match="'bad'"):
            _copy_plain(source, tmp_path / f"copied{number}")
        bad.rmdir() if bad.is_dir() and not bad.is_symlink() else bad.unlink()
    (source / "large").touch()
    os.truncate(source / "large", 1 << 30)
    with pytest.raises(EnvError, match="'large'"):
        _copy_plain(source, tmp_path / "copied9")


def test_a_missing_state_is_an_error(tmp_path: pathlib.Path):
    with pytest.raises(EnvError, match="no state"):
        _copy_plain(tmp_path / "none", tmp_path / "copied")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(EnvError, match="no state"):
        _copy_plain(tmp_path / "link", tmp_path / "copied")


def test_settings_out_of_range_are_named():
    with pytest.raises(ConfigError, match="servers is 0"):
        AppworldFactory(servers=0)
    with pytest.raises(ConfigError, match="done, always"):
        AppworldFactory(evaluate="never")
