"""From a sweep to checked jobs."""

import json
import subprocess
import sys

import pytest

from launch import plan
from sage_jax import config
from sage_jax.errors import ConfigError

BASE = "configs/skillmaster_alfworld.py:smoke"
SWEEP = "configs/sweeps/skillmaster_alfworld.py"


def jobs_of(variants, seeds=(0,), **options):
    return plan.make_jobs(plan.make_sweep("s", BASE, variants, seeds=seeds), "runs/s", **options)


def test_a_plan_is_every_variant_of_a_seed_before_the_next_seed():
    jobs = jobs_of({"a": {}, "b": {"gamma": 0.5}}, seeds=(2, 0))
    assert [(job.variant, job.seed) for job in jobs] == [("a", 2), ("b", 2), ("a", 0), ("b", 0)]
    assert [job.name for job in jobs] == ["s-a-s2", "s-b-s2", "s-a-s0", "s-b-s0"]
    assert jobs[1].run_dir == "runs/s/b/seed_2"
    assert jobs == jobs_of({"a": {}, "b": {"gamma": 0.5}}, seeds=(2, 0))


def test_a_job_resolves_to_what_its_command_line_says():
    values = {
        "utility": False,
        "eval_splits": ("valid_seen",),
        "mesh": "fsdp:8,tensor:4",
        "gamma": 1,
        "lr": 2e-5,
        "probes": 3,
    }
    (job,) = jobs_of({"v": values}, seeds=(7,), python="py")
    assert job.argv[:4] == ("py", "-m", "experiments.main", f"--config={BASE}")
    flat = config.flatten(plan.resolve(job))
    expected = values | {"gamma": 1.0, "seed": 7, "name": "s-v-s7", "run_dir": "runs/s/v/seed_7", "scale": "smoke"}
    assert {key: flat[key] for key in expected} == expected


def test_the_real_program_resolves_a_job_as_the_plan_does():
    (job,) = jobs_of({"v": {"utility": False, "eval_splits": ("valid_seen",), "mesh": "fsdp:1,tensor:1"}})
    code = (
        "import sys; from experiments import main; from absl import app; from sage_jax import config\n"
        "from sage_jax.settings import RunSettings\n"
        "show = lambda argv: print(config.flatten(config.to_dataclass(main._CONFIG.value, RunSettings)))\n"
        "app.run(show, flags_parser=main._parse)"
    )
    done = subprocess.run([sys.executable, "-c", code, *job.argv[3:]], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(config.flatten(plan.resolve(job)))


def test_what_follows_the_colon_of_a_sweep_reaches_every_config():
    sweep = plan.make_sweep("s", "a.py", {"v": {}, "w": {"config": "b.py:local"}}, arg="rounds=3")
    assert [variant.config for variant in sweep.variants] == ["a.py:rounds=3", "b.py:local,rounds=3"]


def test_a_grid_is_a_product_whose_last_key_changes_fastest():
    points = plan.grid({"gamma": [0.1, 0.2], "mesh": ["a:1", "b"]})
    assert list(points) == ["gamma=0.1_mesh=a-1", "gamma=0.1_mesh=b", "gamma=0.2_mesh=a-1", "gamma=0.2_mesh=b"]
    assert points["gamma=0.2_mesh=a-1"] == {"gamma": 0.2, "mesh": "a:1"}
    assert plan.grid({}) == {"base": {}}
    with pytest.raises(ConfigError, match="'gamma' has \\[\\]"):
        plan.grid({"gamma": []})


def test_names_are_labels_unique_and_short():
    jobs = jobs_of({"a_b": {}, "a.b": {"gamma": 0.5}, "x" * 90: {"gamma": 0.6}, "x" * 91: {"gamma": 0.7}})
    names = [job.name for job in jobs]
    assert names[0] == "s-a-b-s0"
    assert len(set(names)) == 4
    for name in names:
        assert len(name) <= plan.NAME_LENGTH
        assert name.replace("-", "").isalnum()
        assert name[0].isalpha()
        assert name == name.lower()


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"v": {"gama": 1.0}}, "variant 'v': unknown config key 'gama'. Did you mean 'gamma'"),
        ({"v": {"gamma": -1.0}}, "variant 'v': config key 'gamma' cannot be -1.0: a number >= 0"),
        ({"v": {"gamma": "much"}}, "variant 'v': flag --config.gamma=much"),
        ({"v": {"accept": "sometimes"}}, "'accept' cannot be 'sometimes'"),
        ({"v": {"bank": None}}, "sets 'bank' to None"),
        ({"v": {"seed": 3}}, "sets 'seed', which the sweep sets itself"),
        ({"v": {"config": "configs/nothing.py"}}, "'configs/nothing.py' does not exist"),
        ({"v": {"config": BASE + ",run_dir=x"}}, "sets 'run_dir', which the sweep sets itself"),
        ({"v": {"config": "configs/skillmaster_alfworld.py:smok"}}, "Did you mean 'smoke'"),
        ({"a/b": {}}, "variant name 'a/b'"),
        ({"a": {}, "b": {"utility": True}}, "variants 'a' and 'b' have the same configuration"),
        ({}, "no variants"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_starts(variants, message):
    with pytest.raises(ConfigError) as caught:
        jobs_of(variants)
    assert message in str(caught.value)


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,), ("1",), (True,)])
def test_seeds_are_distinct_integers(seeds):
    with pytest.raises(ConfigError, match="distinct integers"):
        plan.make_sweep("s", BASE, {"v": {}}, seeds=seeds)


def test_variants_can_be_selected():
    sweep = plan.make_sweep("s", BASE, {"a": {}, "b": {}, "c": {}})
    assert [one.name for one in plan.select(sweep, ["c", "a"]).variants] == ["a", "c"]
    assert plan.select(sweep, []) == sweep
    with pytest.raises(ConfigError, match="no variant 'd'"):
        plan.select(sweep, ["d"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_sweep(): return {'variant': {}}", "unknown sweep key 'variant'. Did you mean 'variants'"),
        ("def get_sweep(): return {'config': 'x.py'}", "either 'variants' or 'grid'"),
        ("def get_sweep(): return {'variants': {'v': {}}}", "variant 'v' has no config"),
        ("def get_sweep(): return []", "returns list"),
        ("x = 1", "defines no get_sweep"),
    ],
)
def test_a_sweep_file_that_says_something_else_is_refused(tmp_path, text, message):
    path = tmp_path / "sweep.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan.load_sweep(str(path))
    assert message in str(caught.value)


def test_a_missing_sweep_file_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'configs/sweeps/skillmaster_alfworld.py'"):
        plan.load_sweep("configs/sweeps/skilmaster_alfworld.py")


@pytest.mark.parametrize("scale", ["local", "smoke"])
def test_every_job_of_the_sweep_in_configs_is_valid(scale):
    sweep = plan.load_sweep(f"{SWEEP}:{scale}")
    jobs = plan.make_jobs(sweep, "runs/x")
    assert len(jobs) == 18
    methods = {job.variant: plan.resolve(job).rl.method for job in jobs}
    assert methods["grpo"] == "grpo"
    assert {method for variant, method in methods.items() if variant != "grpo"} == {"skillmaster"}


def test_the_dry_run_text_holds_the_whole_plan():
    jobs = jobs_of({"v": {}}, env={"K": "1"}, resources=plan.Resources(gpus=2))
    (record,) = json.loads(plan.as_json(jobs))
    assert record["argv"] == list(jobs[0].argv)
    assert (record["env"], record["resources"]["gpus"], record["seed"]) == ({"K": "1"}, 2, 0)


def test_planning_imports_no_jax():
    code = "import sys, launch.plan, launch.local, launch.slurm, launch.gke; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
