"""What one process tells the others, and a whole run in two processes."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import ConfigError
from sage_jax.metrics import read_metrics
from sage_jax.models import unstack_layers
from sage_jax.settings import RunSettings
from sage_jax.testing.tiny import tiny_config
from sage_jax.training import processes
from sage_jax.training.session import policy_mesh

_SHARE = """
import os, sys

from sage_jax.errors import EnvError
from sage_jax.training import processes

processes.initialize(sys.argv[1])
value = processes.once(lambda: {"from": os.getpid(), "much": "x" * 100_000})
print(value["from"], len(value["much"]), processes.is_first())
try:
    processes.once(lambda: (_ for _ in ()).throw(EnvError(f"told by {os.getpid()}")))
except EnvError as error:
    print(error)
"""


def address():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return f"localhost:{probe.getsockname()[1]}"


def run_two(command, devices):
    """Runs a command with its place as the last argument in two processes; returns what each printed."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    place, both = address(), []
    with tempfile.TemporaryDirectory() as folder:
        files = [(pathlib.Path(folder, f"{n}.out"), pathlib.Path(folder, f"{n}.err")) for n in range(2)]
        for n, (out, err) in enumerate(files):
            with out.open("w") as stdout, err.open("w") as stderr:
                both.append(
                    subprocess.Popen([*command(f"{place},{n},2")], env=environment, stdout=stdout, stderr=stderr)
                )
        # One that fails leaves the other waiting for it.
        while any(process.poll() is None for process in both) and not any(process.poll() for process in both):
            time.sleep(0.1)
        failed = [err.read_text()[-3000:] for process, (_, err) in zip(both, files, strict=True) if process.poll()]
        for process in both:
            process.kill()
            process.wait()
        assert not failed, failed[0]
        return [out.read_text() for out, _ in files]


@pytest.mark.parametrize("text", ["here", "host,0,2", "host:1,2,2", "host:1,0", "host:1,a,2"])
def test_a_wrong_place_is_refused_with_the_form(text):
    with pytest.raises(ConfigError, match="the form is auto, or address:port,number,count"):
        processes.initialize(text)


def test_one_process_needs_no_others():
    processes.initialize("")
    assert processes.is_first()
    assert processes.once(lambda: 3) == 3
    tree = {"a": np.ones(2)}
    assert processes.whole_arrays(tree) is tree


def test_what_the_first_process_opens_stays_there(monkeypatch):
    opened = []
    assert processes.in_first(lambda: opened.append(1) or opened) is opened
    heard = []
    monkeypatch.setattr(processes, "once", heard.append)  # as in the others: nothing is run
    assert processes.in_first(lambda: opened.append(2)) is None
    assert (len(heard), opened) == (1, [1])


def test_several_processes_need_a_mesh(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match="mesh='' in a run of 2 processes: give a mesh of all"):
        policy_mesh(to_dataclass({}, RunSettings))


def test_host_arrays_are_taken_apart_on_the_host():
    params = {"layers": {"a": np.arange(6.0).reshape(3, 2)}, "embed": np.ones(2)}
    layers = unstack_layers(params)["layers"]
    assert [layer["a"].tolist() for layer in layers] == [[0, 1], [2, 3], [4, 5]]
    assert isinstance(layers[0]["a"], np.ndarray)


def test_importing_what_trains_starts_no_device():
    """Processes are connected after the imports, and cannot be once jax holds a device."""
    code = "import sage_jax.training.baseline, jax._src.xla_bridge as b; assert not b.backends_are_initialized()"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True)


@pytest.mark.slow
def test_what_the_first_process_finds_or_raises_reaches_the_second():
    first, second = run_two(lambda place: [sys.executable, "-c", _SHARE, place], devices=1)
    # What connects the processes prints lines of its own, at times.
    said, heard = ([line for line in text.splitlines() if "[Gloo]" not in line] for text in (first, second))
    assert said[0].endswith("100000 True")
    assert heard[0] == said[0].replace("True", "False")
    assert heard[1] == said[1]
    assert heard[1].startswith("told by")


_TRAIN = """
import json, sys

from sage_jax.config import configure, to_dataclass
from sage_jax.settings import RunSettings
from sage_jax.training import loop, processes

processes.initialize(sys.argv[2])
loop.train(to_dataclass(configure(RunSettings, json.loads(sys.argv[1])), RunSettings))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_the_first_process_cannot_reach_ends_both(tiny_folder, tiny_cache, tmp_path):
    url = f"http://{address()}"
    values = {"engine": "http", "engine_urls": [url], "episode_timeout_s": 2.0, "mesh": "fsdp:2"}
    text = json.dumps(tiny_config(tmp_path / "run", tiny_folder, tiny_cache, **values))
    place, both = address(), []
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    for number in range(2):
        with (tmp_path / f"{number}.err").open("w") as file:
            command = [sys.executable, "-c", _TRAIN, text, f"{place},{number},2"]
            both.append(subprocess.Popen(command, env=environment, stderr=file, stdout=file))
    try:
        assert all(process.wait(timeout=300) != 0 for process in both)
    finally:
        for process in both:
            process.kill()
    for number in range(2):
        assert re.search(rf"ServerUnavailableError: .*{url}", (tmp_path / f"{number}.err").read_text())


_FROZEN = {  # an editor that is trained, and a second engine for the policy that is not
    "method": "skillr1",
    "task_llm": "policy",
    "skill_tokens": 8,
    "sft_episodes": 0,
    "games_train": 3,
    "eval_splits": ("valid_seen",),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", [{}, _FROZEN], ids=["skillmaster", "skillr1"])
def test_a_run_of_two_processes_is_that_of_one(tiny_folder, tiny_cache, tmp_path, method):
    numbers = {}
    for name, mesh in (("one", ""), ("two", "fsdp:2")):
        sizes = {"mesh": mesh, "rounds": 1, "rows_per_micro": 1}
        values = tiny_config(tmp_path / name, tiny_folder, tiny_cache, **{**sizes, **method})
        command = [sys.executable, "-c", _TRAIN, json.dumps(values)]
        if mesh:
            run_two(lambda place, command=command: [*command, place], devices=1)
        else:
            environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
            subprocess.run([*command, ""], env=environment, check=True)
        numbers[name] = read_metrics(tmp_path / name)
    one, two = numbers["one"], numbers["two"]
    assert [line["step"] for line in two] == [line["step"] for line in one]
    for before, after in zip(one, two, strict=True):
        assert before.keys() == after.keys()
        for name in ("sft/loss", "reward/mean", "loss/total", "update/grad_norm", "tokens/trained"):
            if name in before:
                assert after[name] == pytest.approx(before[name], rel=1e-3, abs=1e-4), name
