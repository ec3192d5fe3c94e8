"""Programs that are compiled and not run: what they tell, and what is refused."""

import dataclasses
import importlib.util
import os
import subprocess
import sys

import jax
import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import ConfigError
from sage_jax.models import abstract_params, preset
from sage_jax.models.sharding import make_mesh
from sage_jax.rollout.layout import engine_mesh
from sage_jax.settings import RunSettings
from sage_jax.training import compile_check, compile_page
from sage_jax.training.compile_check import CompileReport, Program, compile_run, roofline
from sage_jax.training.hlo import Collective, Costs
from sage_jax.training.topology import CHIPS, Chip, Topology, open_topology

V5E = CHIPS["v5e"]
GIB = 2**30
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu")


SIZES = {
    "model": "",
    "model_preset": "tiny",
    "row_length": 64,
    "max_length": 64,
    "rows_per_micro": 2,
    "slots": 8,
    "unroll": False,
}
ONE = Costs(flops=1, traffic=1, collectives=(), unknown_loops=0, opaque=())


def settings(**values):
    return to_dataclass({**SIZES, **values}, RunSettings)


def report(*programs, memory=16 * GIB):
    topology = Topology("v5e:1x1", dataclasses.replace(V5E, memory=memory), jax.devices()[:1])
    return CompileReport(topology, {"data": 1}, preset("tiny"), 2, 64, programs, ())


def program(name, held, working, costs=ONE):
    return Program(name, 1.0, int(held * GIB), int(working * GIB), costs, 128)


def test_memory_is_what_all_hold_and_the_most_that_one_works_with():
    parts = program("learner: update", 8, 3), program("engine: prefill", 4, 0.5), program("engine: decode", 4, 1)
    assert report(*parts).needed == 15 * GIB  # the two programs of the engine hold the same
    assert report(*parts).fits
    assert not report(*parts, memory=14.9 * GIB).fits
    assert not report(program("learner: update", 1, 1, costs=None)).fits


def test_an_engine_of_lower_precision_is_counted_as_it_is():
    def held(**values):
        mesh = make_mesh(data=1, devices=jax.devices()[:1])
        job = compile_check._engine_jobs("engine", settings(**values), preset("tiny"), mesh)[0]
        weights, cache, _ = (sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(x)) for x in job.arguments)
        return weights, cache

    weights, cache = held()
    assert held(engine_dtype="bfloat16") == (weights / 2, cache / 2)
    assert held(engine_kv_dtype="bfloat16") == (weights, cache / 2)


def test_the_engine_of_a_frozen_policy_is_counted(monkeypatch):
    monkeypatch.setattr(compile_check, "_compile", lambda job, chip: program(job.name, 1, 0))
    needed = {}
    for method in ("grpo", "skillr1"):
        found = compile_run(settings(method=method, task_llm="policy", sft_episodes=0), "cpu:1")
        needed[method] = found.needed, [one.name.split(":")[0] for one in found.programs]
    assert needed["grpo"] == (2 * GIB, ["learner", "engine", "engine"])
    assert needed["skillr1"] == (3 * GIB, ["learner", "engine", "engine", "frozen", "frozen"])


def test_roofline_worked_by_hand():
    chip = Chip("x", memory=1, flops=1e12, bandwidth=1e11, link=1e10)
    collectives = Collective("all-gather", 4, 3, 2 * 10**9), Collective("all-reduce", 4, 1, 10**9)
    times = roofline(Costs(5 * 10**12, 10**11, collectives, 0, ()), chip)
    assert times == {"compute": 5.0, "memory": 1.0, "network": 0.3}


@pytest.mark.parametrize(
    ("message", "gib"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (1.00T) "
            "exceeds available HBM (15.75G).",
            1024,
        ),
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Used 17.5G of 15.75G hbm. Exceeded by 1.75G.", 17.5),
        ("RESOURCE_EXHAUSTED: something else", 0),
    ],
)
def test_the_compilers_refusal_tells_what_it_wanted(message, gib):
    assert compile_check._wanted(message) == gib * GIB


@pytest.mark.parametrize("text", ["v9:2x2", "v5e", "v5e:2x", "cpu:0", "cpu:two", "4x4", ""])
def test_unknown_chips_are_refused_with_the_form(text):
    with pytest.raises(ConfigError, match="the form is cpu:8, or chip and shape"):
        open_topology(text)


@pytest.mark.parametrize(
    ("mesh", "values", "message"),
    [
        ("tensor:3", {}, r"tensor:3 does not divide model.num_heads=4.*that divide it: 1, 2"),
        ("tensor:4,sequence:2", {"row_length": 65}, r"sequence:2 does not divide row_length=65"),
    ],
)
def test_a_mesh_that_leaves_devices_idle_is_refused(mesh, values, message):
    sizes = {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1} | compile_check.parse_mesh(mesh)
    abstract = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    with pytest.raises(ConfigError, match=message):
        compile_check._check_mesh(preset("tiny"), abstract, values.get("row_length", 64))


def test_what_stays_whole_is_noted():
    abstract = jax.sharding.AbstractMesh((1, 5, 1, 4), ("data", "fsdp", "sequence", "tensor"))
    notes = compile_check._check_mesh(preset("tiny"), abstract, 64)
    assert [note.split(" does")[0] for note in notes] == ["tensor:4", "fsdp:5"]
    assert "num_kv_heads=2" in notes[0]


def test_a_mesh_of_other_size_than_the_slice_is_refused():
    with pytest.raises(ConfigError, match="must multiply to the number of devices, 1"):
        compile_run(settings(), "cpu:1", "fsdp:2")


def test_one_device_is_compiled_and_counted(capsys):
    run = settings(method="grpo", kl_coef=0.0)
    assert compile_page.print_report(run, "cpu:1", "")
    printed = capsys.readouterr().out
    count = sum(leaf.size for leaf in jax.tree.leaves(abstract_params(preset("tiny"))))
    assert f"{count:,} parameters" in printed
    for part in ("learner: update", "engine: prefill", "engine: decode", "fits", "tokens/s"):
        assert part in printed
    assert "among" not in printed  # one device sends nothing


def test_the_engines_mesh_is_one_group_of_the_learners():
    mesh = make_mesh(devices=jax.devices()[:1])
    assert dict(engine_mesh(mesh).shape) == {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}


def command(*arguments, **environment):
    values = [f"--config.{key}={value}" for key, value in (("model", ""), ("model_preset", "tiny"))]
    sizes = "row_length=1024,rows_per_micro=1,slots=8,unroll=False"
    return subprocess.run(
        [sys.executable, "-m", "experiments.main", f"--config=configs/skillmaster_alfworld.py:local,{sizes}"]
        + ["--mode=compile", *values, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_eight_virtual_devices_from_the_command_line():
    done = command("--topology=cpu:8", "--mesh=fsdp:2,sequence:2,tensor:2")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all-gather among 2" in done.stdout
    wrong = command("--topology=cpu:8", "--mesh=fsdp:3")
    assert wrong.returncode == 1
    assert "must multiply to the number of devices, 8" in wrong.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_libtpu
def test_a_tpu_that_is_not_here():
    done = command("--topology=v5e:2x2", "--mesh=fsdp:2,tensor:2")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4 x v5e, 15.75 GiB each" in done.stdout
    large = ["--config.model_preset=qwen2.5-32b-instruct", "--config.engine=http", "--config.engine_urls=http://x"]
    refused = command("--topology=v5e:2x2", "--mesh=fsdp:2,tensor:2", *large)
    assert refused.returncode == 1
    assert "DOES NOT FIT" in refused.stdout
