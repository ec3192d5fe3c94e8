"""Jobs that are tiny Python programs, and a stand-in for the interpreter that runs `experiments.main`."""

import os
import stat
import sys

import pytest

from launch.plan import Job, Resources

FINISH = "import os; os.makedirs('eval', exist_ok=True); open('eval/after.json', 'w').write('[1]')"

# Takes the place of `python -m experiments.main --config.run_dir=...`: leaves what a finished run leaves.
FAKE_MAIN = """#!{python} -SE
import os, sys, time
values = dict(arg.removeprefix("--config.").split("=", 1) for arg in sys.argv if arg.startswith("--config."))
if os.environ.get("FAIL_IF", "no such folder") in values["run_dir"]:
    print("first line"); sys.exit("it broke")
if "SLEEP" in os.environ:
    child = os.fork()
    if child:
        with open(values["run_dir"] + "/pids", "w") as file:
            file.write(str(os.getpid()) + " " + str(child))
    time.sleep(60)
os.makedirs(values["run_dir"] + "/eval", exist_ok=True)
with open(values["run_dir"] + "/eval/after.json", "w") as file:
    file.write("[1]")
"""


@pytest.fixture
def make_job(tmp_path):
    """Makes a job that runs Python code in its run folder."""

    def make(name: str, code: str = FINISH, **env: str) -> Job:
        folder = tmp_path / name
        program = f"import os; os.chdir({str(folder)!r})\n{code}"
        return Job(
            name=name,
            argv=(sys.executable, "-S", "-c", program),
            env=env,
            run_dir=str(folder),
            resources=Resources(),
            variant=name,
            seed=0,
        )

    return make


@pytest.fixture
def fake_python(tmp_path):
    """Path of the stand-in."""
    path = tmp_path / "fake_python"
    path.write_text(FAKE_MAIN.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    assert os.access(path, os.X_OK)
    return str(path)
