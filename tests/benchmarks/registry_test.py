"""Every benchmark has its keys, its splits and an expert, and making one loads nothing."""

import dataclasses
import subprocess
import sys

import pytest

from sage_jax import config
from sage_jax.benchmarks import BENCHMARKS
from sage_jax.benchmarks.registry import GROUPS
from sage_jax.settings import RunSettings


@pytest.mark.parametrize("name", BENCHMARKS)
def test_settings_have_a_group_of_a_benchmarks_keys(name):
    group = GROUPS.get(name, name)
    assert group in {field.name for field in dataclasses.fields(RunSettings)}
    splits = BENCHMARKS[name].splits
    made = config.to_dataclass({"benchmark": name, "eval_splits": splits[-1:]}, RunSettings).open_benchmark()
    assert isinstance(made, BENCHMARKS[name])
    assert made.settings == getattr(RunSettings(), group)
    assert made.splits[0] == "train"
    assert {made.size_key(split) for split in made.splits} <= set(config.flat_fields(RunSettings))


def test_a_benchmark_is_made_without_its_engine_and_without_jax():
    code = (
        "import sys; from sage_jax.settings import RunSettings; RunSettings().open_benchmark(); "
        "print([name for name in ('jax', 'textworld', 'bm25s') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
