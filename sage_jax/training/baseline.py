"""A run of SAGE with its baseline: GRPO without a library, from the same start, as many episodes a round."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

from sage_jax.settings import RunSettings
from sage_jax.training import loop
from sage_jax.training.processes import is_first

TAG = "grpo"


def train(settings: RunSettings) -> pathlib.Path:
    """Runs, or continues, a training run, its baseline first where it asks for one; returns its folder.

    The baseline lies in `<run_dir>/grpo`; its last evaluation is the run's evaluation "grpo". Errors as `loop.train`.
    """
    if settings.sage.baseline:
        folder = loop.train(baseline_settings(settings))
        if is_first():
            path = pathlib.Path(settings.run_dir, "eval", f"{TAG}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / "eval" / "after.json", path)
    return loop.train(settings)


def baseline_settings(settings: RunSettings) -> RunSettings:
    """Returns the baseline's settings: single tasks, as many as SAGE's chains have."""
    tasks = settings.rl.tasks_per_round * settings.sage.chain_length
    return dataclasses.replace(
        settings,
        name=f"{settings.name}_{TAG}",
        run_dir=f"{settings.run_dir}/{TAG}",
        rl=dataclasses.replace(settings.rl, method="grpo", tasks_per_round=tasks),
        sage=dataclasses.replace(settings.sage, baseline=False),
    )
