"""Kubernetes objects: the text is read back as YAML."""

import dataclasses
import json
import subprocess
import sys

import pytest
import yaml

from launch import gke
from launch.plan import Resources
from sage_jax.errors import ConfigError

CONFIG = "--config=configs/skillmaster_alfworld.py:smoke"
OPTIONS = {"sweep": "my sweep", "image": "registry/image:1", "bucket": "b"}


@pytest.fixture
def make_pod_job(make_job):
    def make(name: str, **resources) -> object:
        job = make_job(name, A='it\'s "x": $y')
        argv = ("python", "-c", "print('{{ no }} template')", "--x=a: b # c")
        run_dir = f"/runs/s/{name}"
        return dataclasses.replace(job, argv=argv, run_dir=run_dir, resources=Resources(**resources))

    return make


def test_one_host_is_a_job_with_its_command_untouched(make_pod_job):
    jobs = [make_pod_job(name, tpu="tpu-v5p-slice", topology="2x2x1", hours=2, cpus=8) for name in ("a", "b")]
    first, second = yaml.safe_load_all(gke.manifest(jobs, **OPTIONS, service_account="sa"))
    assert (first["kind"], first["apiVersion"], second["metadata"]["name"]) == ("Job", "batch/v1", "b")
    assert first["spec"]["activeDeadlineSeconds"] == 7200
    pod = first["spec"]["template"]
    assert pod["metadata"] == {"labels": {"sweep": "my-sweep"}, "annotations": {"gke-gcsfuse/volumes": "true"}}
    (container,) = pod["spec"]["containers"]
    assert container["command"] == list(jobs[0].argv)
    assert container["env"] == [{"name": "A", "value": 'it\'s "x": $y'}]
    assert container["resources"]["limits"] == {"google.com/tpu": "4"}
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "16G"}
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    assert pod["spec"]["volumes"][0]["csi"]["volumeAttributes"] == {"bucketName": "b"}
    assert pod["spec"]["serviceAccountName"] == "sa"
    assert pod["spec"]["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x1",
    }


def test_several_hosts_are_a_jobset_with_one_pod_a_host(make_pod_job):
    (one,) = yaml.safe_load_all(
        gke.manifest([make_pod_job("a", tpu="tpu-v5p-slice", topology="4x4x4")], **OPTIONS, restarts=3)
    )
    assert (one["kind"], one["spec"]["failurePolicy"]) == ("JobSet", {"maxRestarts": 3})
    (group,) = one["spec"]["replicatedJobs"]
    spec = group["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (16, 16, 0)
    assert spec["template"]["spec"]["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}


def test_without_a_tpu_the_pod_asks_for_none(make_pod_job):
    (one,) = yaml.safe_load_all(gke.manifest([make_pod_job("a")], **OPTIONS))
    assert "nodeSelector" not in one["spec"]["template"]["spec"]
    assert "limits" not in one["spec"]["template"]["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize(
    ("kind", "topology", "hosts", "chips"),
    [
        ("tpu-v6e-slice", "1x1", 1, 1),
        ("tpu-v6e-slice", "2x4", 1, 8),
        ("tpu-v5-lite-podslice", "4x4", 4, 4),
        ("tpu-v4-podslice", "2x2x2", 2, 4),
        ("tpu-v5p-slice", "8x8x8", 128, 4),
    ],
)
def test_hosts_of_a_slice(kind, topology, hosts, chips):
    assert gke.slice_of(kind, topology) == gke.Slice(kind, topology, hosts, chips)


@pytest.mark.parametrize(
    ("kind", "topology", "message"),
    [
        ("tpu-v5p", "2x2x1", "unknown tpu 'tpu-v5p'. Did you mean 'tpu-v5p-slice'"),
        ("", "2x2x1", "unknown tpu ''"),
        ("tpu-v5p-slice", "2x2", "3 numbers joined by 'x'"),
        ("tpu-v5p-slice", "", "3 numbers joined by 'x'"),
        ("tpu-v6e-slice", "2x2x2", "2 numbers joined by 'x'"),
        ("tpu-v6e-slice", "1x3", "has 3 chips"),
        ("tpu-v5p-slice", "1x2x2", "has 4 chips"),
    ],
)
def test_slices_that_do_not_exist_are_refused(kind, topology, message):
    with pytest.raises(ConfigError) as caught:
        gke.slice_of(kind, topology)
    assert message in str(caught.value)


def test_a_run_folder_outside_the_bucket_is_refused(make_pod_job):
    job = dataclasses.replace(make_pod_job("a"), run_dir="runs/a")
    with pytest.raises(ConfigError, match="run_dir='runs/a' is not in the bucket"):
        gke.manifest([job], **OPTIONS)


def test_the_command_prints_yaml_or_the_plan(capsys):
    argv = [f"{CONFIG},mesh=fsdp:8", "--seeds=0,1", "--image=i", "--bucket=b"]
    argv += ["--tpu=tpu-v5p-slice", "--topology=2x2x2"]
    assert gke.main(argv) == 0
    output = capsys.readouterr()
    assert [one["kind"] for one in yaml.safe_load_all(output.out)] == ["JobSet", "JobSet"]
    assert not output.err
    assert gke.main([*argv, "--dry_run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan[0]["argv"][0] == "python"
    assert plan[0]["run_dir"] == "/runs/skillmaster_alfworld/base/seed_0"
    assert plan[0]["resources"]["topology"] == "2x2x2"


@pytest.mark.parametrize(("topology", "joins"), [("2x2x1", False), ("2x2x2", True)])
def test_the_processes_of_several_hosts_are_told_to_join(capsys, topology, joins):
    argv = [f"{CONFIG},mesh=fsdp:4", "--image=i", "--bucket=b", "--tpu=tpu-v5p-slice", f"--topology={topology}"]
    assert gke.main(argv) == 0
    (one,) = yaml.safe_load_all(capsys.readouterr().out)
    spec = one["spec"]["replicatedJobs"][0]["template"]["spec"] if joins else one["spec"]
    command = spec["template"]["spec"]["containers"][0]["command"]
    assert ("--distributed=auto" in command) == joins
    assert gke.main([*argv, "--dry_run"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["argv"] == command
    code = (
        "from absl import app; from experiments import main\n"
        "app.run(lambda _: print(main._DISTRIBUTED.value), flags_parser=main._parse)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command[3:]], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("auto" if joins else "")


def test_several_hosts_without_a_mesh_are_refused():
    with pytest.raises(ConfigError, match="variant 'base' has mesh='' on 2 hosts: give a mesh of all their chips"):
        gke.main([CONFIG, "--image=i", "--bucket=b", "--tpu=tpu-v5p-slice", "--topology=2x2x2"])
