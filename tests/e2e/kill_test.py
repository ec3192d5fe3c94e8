"""A run that is killed and started again ends as if nobody had disturbed it, bit for bit."""

import json
import random
import shutil
import signal

import numpy as np
import pytest

from sage_jax.checkpoints import Checkpointer, CheckpointWarning
from sage_jax.metrics import read_metrics
from sage_jax.training import loop


def outcome(folder):
    """Returns everything that a run ends with, but for wall times and the work that the engine was spared."""
    with Checkpointer(folder / "checkpoints") as checkpointer:
        manifest = json.loads((folder / "checkpoints" / "manifests" / f"{checkpointer.latest()}.json").read_text())
        fingerprint = manifest["fingerprint"]
    with Checkpointer(folder / "checkpoints", fingerprint=fingerprint) as checkpointer:
        restored = checkpointer.restore()
    timeless = [
        {name: value for name, value in line.items() if not name.startswith(("time", "engine/"))}
        for line in read_metrics(folder)
    ]
    files = {
        path.name: path.read_text()
        for path in sorted([*folder.glob("rounds/*.jsonl"), *folder.glob("eval/*.json"), folder / "skills.json"])
    }
    return restored.arrays, restored.document["bank"], timeless, files


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in leaves(item)]
    return [] if tree is None else [np.asarray(tree)]


def assert_same(folder, finished):
    (arrays, bank, metrics, files), (expected, other_bank, other_metrics, other_files) = map(
        outcome, (folder, finished)
    )
    assert len(bank["log"]) > 0
    assert bank == other_bank
    assert metrics == other_metrics
    assert files.keys() == other_files.keys()
    for name, text in files.items():
        for line, other in zip(text.splitlines(), other_files[name].splitlines(), strict=True):
            assert line == other, name
    pairs = list(zip(leaves(arrays), leaves(expected), strict=True))
    assert len(pairs) > 40  # parameters, two moments, the reference policy
    for here, there in pairs:
        np.testing.assert_array_equal(here, there)


def test_a_stop_and_a_kill_leave_no_trace(program, finished, tmp_path):
    manifests = tmp_path / "checkpoints" / "manifests"
    steps = tmp_path / "checkpoints" / "steps"
    # Ctrl-C in the evaluation or the round after the cold start.
    code = program.stop_when(tmp_path, lambda _: (manifests / "0.json").exists(), by=signal.SIGINT)
    printed = (tmp_path / "output.txt").read_text()
    assert (code, "Traceback" in printed) == (130, False), printed
    assert printed.endswith("interrupted: the same command continues from the last checkpoint\n")
    # The machine goes away while the first round's checkpoint is being written.
    moment = lambda _: (steps / "1").exists() or any(steps.glob("1.*"))  # noqa: E731
    assert program.stop_when(tmp_path, moment) == -signal.SIGKILL
    program.run(tmp_path)
    assert_same(tmp_path, finished[0])


def test_a_damaged_checkpoint_costs_its_round_and_nothing_else(program, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    largest = max((folder / "checkpoints" / "steps" / "2").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"!")
    with pytest.warns(CheckpointWarning, match="checkpoint 2 is damaged"):
        loop.train(program.settings(folder))
    assert_same(folder, finished[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_kill_at_any_moment_leaves_no_trace(program, finished, tmp_path, seed):
    starts = [json.loads(line)["time"] for line in (finished[0] / "starts.jsonl").read_text().splitlines()]
    assert len(starts) == 1
    rng = random.Random(seed)
    for _ in range(3):
        moment = rng.uniform(2.0, 20.0)  # imports, cold start, evaluation, rounds
        program.stop_when(tmp_path, lambda seconds, moment=moment: seconds > moment)
    program.run(tmp_path)
    assert_same(tmp_path, finished[0])
