import pathlib

import pytest
from fast_downward import interface

from sage_jax.envs.alfworld.planner import PlannerLibrary, trim_elf
from sage_jax.errors import EnvError


def loaded_copies() -> int:
    with open("/proc/self/maps") as file:
        return sum("libdownward" in line and "r-xp" in line for line in file)


def test_copies_are_private_and_handed_back():
    planners = [PlannerLibrary() for _ in range(3)]
    assert len({planner.library._handle for planner in planners}) == 3
    loaded = loaded_copies()
    for planner in planners:
        planner.close()
        planner.close()
        with pytest.raises(EnvError, match="closed"):
            planner.library.cleanup()
    again = [PlannerLibrary() for _ in range(3)]
    assert len({planner.library._handle for planner in again}) == 3
    assert loaded_copies() == loaded
    for planner in again:
        planner.close()


def test_the_loader_leaves_the_engines_path_alone():
    path = interface.DOWNWARD_LIB_PATH
    PlannerLibrary().close()
    assert path == interface.DOWNWARD_LIB_PATH


def test_trimming_keeps_what_is_loaded_and_drops_the_rest():
    data = pathlib.Path(interface.DOWNWARD_LIB_PATH).read_bytes()
    trimmed = trim_elf(data)
    assert len(trimmed) < len(data) / 10
    assert trimmed[64:] == data[64 : len(trimmed)]
    assert trim_elf(trimmed) == trimmed
