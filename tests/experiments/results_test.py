"""`make results`, from run folders to the page; and that the page in docs/ is what its records say."""

import json
import pathlib

import pytest

from experiments import results
from sage_jax.errors import DataError
from sage_jax.metrics import EvalRow, open_run_folder, write_rows

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_is_what_its_records_say(capsys):
    assert results.main([f"--page={ROOT / 'docs/results.md'}", "--check"]) == 0, capsys.readouterr().out


def test_no_record_tells_of_a_machine():
    texts = [path.read_text() for path in (ROOT / "docs/records").glob("*.json")]
    assert texts
    for text in texts:
        for one in json.loads(text)["runs"]:
            words = [one["command"], *map(str, one["config"].values())]
            assert not [word for value in words for word in value.replace("=", " ").split() if word.startswith("/")]


@pytest.fixture
def page(tmp_path):
    """A page with one part, and runs of its sweep: base with two seeds, more with one."""
    sweep = tmp_path / "gammas.py"
    sweep.write_text(
        "def get_sweep():\n"
        "    base = 'configs/skillmaster_alfworld.py'\n"
        "    return dict(config=base, variants={'base': {}, 'more': dict(gamma=0.5)}, seeds=(0, 1))\n"
    )
    path = tmp_path / "docs" / "results.md"
    path.parent.mkdir()
    path.write_text(f"# Page\n\n<!-- begin sweep={sweep} -->\n<!-- end -->\n\nBy hand.\n")
    for variant, seed in (("base", 0), ("base", 1), ("more", 0)):
        finish(tmp_path / "runs/gammas" / variant / f"seed_{seed}", 0.25 + 0.5 * seed)
    return path


def finish(folder, success):
    """Leaves what a finished run leaves."""
    open_run_folder(folder, {"method": "skillmaster", "benchmark": "alfworld"}, argv=[])
    for tag in ("before", "after"):
        write_rows(folder / f"eval/{tag}.json", [EvalRow("seen", False, "all", 8, 0, success, 0.0, 1.0, 9.0, 90.0)])
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward/success": 0.5}\n')


def build(page, *more):
    return results.main([f"--page={page}", f"--runs={page.parents[1] / 'runs'}", *more])


def test_a_page_is_made_checked_and_made_again_without_the_runs(page, capsys):
    assert build(page) == 0
    assert "gammas: 3 of 4 runs recorded, 3 of them read" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("# Page\n\n")
    assert text.endswith("By hand.\n")
    assert "| seen | base | 50.0 ± 35.4 |" in text
    assert "--config.gamma=0.5" in text
    assert build(page, "--check") == 0

    finish(page.parents[1] / "runs/gammas/more/seed_1", 1.0)
    for seed in (0, 1):  # these runs are on another machine now
        (page.parents[1] / f"runs/gammas/base/seed_{seed}/eval/after.json").unlink()
    assert build(page) == 0
    assert "4 of 4 runs recorded, 2 of them read" in capsys.readouterr().out
    assert "| seen | base | 50.0 ± 35.4 |" in page.read_text()
    assert "| seen | more | 62.5 ± 53.0 |" in page.read_text()


def test_a_number_changed_by_hand_is_found(page, capsys):
    build(page)
    page.write_text(page.read_text().replace("50.0 ± 35.4", "60.0 ± 35.4"))
    figure = page.parent / "figures/gammas.svg"
    figure.write_text(figure.read_text().replace("base", "best"))
    capsys.readouterr()
    assert build(page, "--check") == 1
    printed = capsys.readouterr().out
    assert "results.md" in printed
    assert "gammas.svg" in printed


def test_a_part_without_a_record_is_named(page):
    page.write_text(page.read_text().replace("gammas.py", "absent.py"))
    with pytest.raises(DataError, match=r"absent.json is no record"):
        build(page, "--check")
