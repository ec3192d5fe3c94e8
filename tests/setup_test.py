"""The files that set the project up say the same thing as each other."""

import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[1]


def requirements(name: str) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def pins(name: str) -> dict[str, str]:
    return {canonicalize_name(item.name): next(iter(item.specifier)).version for item in requirements(name)}


@pytest.mark.parametrize("name", ["requirements", "requirements-test"])
def test_everything_is_pinned_exactly_and_fits_what_was_asked_for(name):
    for requirement in requirements(f"{name}.txt"):
        assert [part.operator for part in requirement.specifier] == ["=="], requirement
    locked = pins(f"{name}.txt")
    for requirement in requirements(f"{name}.in"):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_both_locks_agree():
    run, test = pins("requirements.txt"), pins("requirements-test.txt")
    assert {name: (run[name], test[name]) for name in run.keys() & test.keys() if run[name] != test[name]} == {}


def make(folder: pathlib.Path, *words: str) -> str:
    return subprocess.run(
        ["make", "--no-print-directory", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def test_second_run_installs_nothing(tmp_path):
    for name in ("Makefile", "requirements.txt", "requirements-test.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    assert "pip install" in make(tmp_path, "-n", "run")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("bin/python", ".installed", ".installed-test"):
        (tmp_path / ".venv" / name).touch()
    for target in ("run", "test"):
        assert "pip install" not in make(tmp_path, "-n", target)
    (tmp_path / ".venv" / ".installed").unlink()
    assert "pip install" in make(tmp_path, "-n", "test")


def test_run_takes_another_config(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.txt").touch()
    assert "--config=configs/x.py:smoke --config.seed=3" in make(
        tmp_path, "-n", "run", "CONFIG=configs/x.py:smoke", "ARGS=--config.seed=3"
    )


def test_help_lists_every_public_target():
    declared = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    public = set(declared.group(1).split()) - {"install", "install-test"}
    assert {line.split()[1] for line in make(ROOT, "help").splitlines()} == public


def test_continuous_integration_stops_at_the_first_failure():
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert re.findall(r"^make .+$", script, re.MULTILINE) == [
        "make test",
        "make run CONFIG=configs/skillmaster_alfworld.py:smoke",
    ]


def test_import_contracts_name_every_package():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layered = {name for layer in contracts[0]["layers"] for name in re.findall(r"[a-z_]+", layer)}
    packages = {path.parent.name for path in (ROOT / "sage_jax").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "sage_jax").glob("*.py")} - {"__init__"}
    assert packages | modules <= layered
