"""An ablation from its command to its page, with a stand-in for the runs themselves."""

import json
import stat
import sys

import pytest

from experiments import ablate
from sage_jax.errors import ConfigError

# Leaves what a finished run leaves: success rises with the seed and, for the variant with gamma, by 0.125 more.
RUN = """#!{python} -SE
import json, os, sys
values = dict(arg.removeprefix("--config.").split("=", 1) for arg in sys.argv if arg.startswith("--config."))
folder, seed = values["run_dir"], int(values["seed"])
if os.path.exists({switch!r}) and seed == 1:
    sys.exit("out of luck")
with open(folder + "/starts", "a") as file:
    file.write("x")
os.makedirs(folder + "/eval", exist_ok=True)
for tag, success in (("before", 0.125), ("after", 0.25 + 0.25 * seed + ("gamma" in values) * 0.125)):
    row = dict(split="valid_unseen", retrieval=False, family="all", n=8, failed=0, success=success,
               wilson_low=0.0, wilson_high=1.0, steps=10.0, tokens=100.0)
    with open(folder + "/eval/" + tag + ".json", "w") as file:
        json.dump([row], file)
with open(folder + "/metrics.jsonl", "w") as file:
    for step in (1, 2):
        file.write(json.dumps({{"step": step, "reward/success": step / 4}}) + chr(10))
"""


@pytest.fixture
def command(tmp_path):
    """Arguments of an ablation of two variants and two seeds into tmp_path/out."""
    program, sweep = tmp_path / "program", tmp_path / "gammas.py"
    program.write_text(RUN.format(python=sys.executable, switch=str(tmp_path / "bad_luck")))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    sweep.write_text(
        "def get_sweep():\n"
        "    base = 'configs/skillmaster_alfworld.py'\n"
        "    return dict(config=base, variants={'base': {}, 'more': dict(gamma=0.5)}, seeds=(0, 1))\n"
    )
    return [f"--sweep={sweep}:smoke", f"--out={tmp_path}/out", f"--python={program}"]


def test_an_ablation_runs_continues_and_reports(command, tmp_path, capsys):
    luck = tmp_path / "bad_luck"
    luck.touch()
    assert ablate.main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "base seed 0: done" in lines[0]
    assert lines[0].endswith("valid_unseen 25 %")
    assert "out of luck" in lines[2]
    page = (tmp_path / "out/results.md").read_text()
    assert "2 of 4 runs" in page
    assert "- base, seed 1: exit 1: out of luck" in page

    luck.unlink()
    assert ablate.main(command) == 0
    output = capsys.readouterr().out
    assert output.count("skipped valid_unseen") == 2
    assert output.strip().endswith("out/results.md")
    page = (tmp_path / "out/results.md").read_text()
    assert "4 of 4 runs" in page
    assert "Not in the tables" not in page
    # base 0.25 and 0.50, more 0.375 and 0.625: means 37.5 and 50, each difference 12.5
    assert "| base | 2 | 12.5 ± 0.0 | 37.5 ± 17.7 | +25.0 " in page
    assert "+12.5 [+12.5, +12.5] p 0.5, n 2" in page
    assert "    python -m experiments.main --config=configs/skillmaster_alfworld.py:smoke --config.gamma=0.5" in page
    assert (tmp_path / "out/success.svg").is_file()
    assert (tmp_path / "out/base/seed_0/starts").read_text() == "x"


def test_only_report_runs_nothing_and_makes_the_same_page(command, tmp_path, capsys):
    assert ablate.main(command) == 0
    files = [tmp_path / "out" / name for name in ("results.md", "results.json", "success.svg")]
    before = [path.read_bytes() for path in files]
    for path in files:
        path.unlink()
    (tmp_path / "program").unlink()
    for flag in ("--only_report", "--only-report"):
        assert ablate.main([*command, flag]) == 0
        assert [path.read_bytes() for path in files] == before
    assert "not finished" in _page_without(command, tmp_path)


def test_dry_run_prints_the_plan(command, tmp_path, capsys):
    assert ablate.main([*command, "--dry_run"]) == 0
    jobs = json.loads(capsys.readouterr().out)
    assert [(job["variant"], job["seed"]) for job in jobs] == [("base", 0), ("more", 0), ("base", 1), ("more", 1)]
    assert not (tmp_path / "out").exists()


def test_nothing_starts_when_one_variant_is_wrong(command, tmp_path):
    sweep = tmp_path / "gammas.py"
    sweep.write_text(sweep.read_text().replace("gamma=0.5", "gama=0.5"))
    with pytest.raises(ConfigError, match="Did you mean 'gamma'"):
        ablate.main(command)
    assert not (tmp_path / "out").exists()


def _page_without(command, tmp_path) -> str:
    """The page after one run has lost its result."""
    (tmp_path / "out/more/seed_1/eval/after.json").unlink()
    assert ablate.main([*command, "--only_report"]) == 0
    return (tmp_path / "out/results.md").read_text()
