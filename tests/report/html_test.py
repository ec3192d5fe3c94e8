"""The page of a run: complete, self-contained, and safe against markup in what a model wrote."""

import html.parser
import re
import shutil
import subprocess
import sys

import pytest

from sage_jax.errors import DataError
from sage_jax.report import load_run, render, write_report
from sage_jax.report.__main__ import main
from sage_jax.report.curves import draw_charts
from sage_jax.report.html import choose_trajectories, lineages


class Collector(html.parser.HTMLParser):
    """Collects tags and the addresses that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.tags, self.fetched = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href") and value]


def parse(text: str) -> Collector:
    collector = Collector()
    collector.feed(text)
    return collector


def test_page_shows_every_part_of_the_run(run_dir):
    text = write_report(run_dir).read_text()
    for expected in ("valid_unseen", "before, with skills", "after, without skills", "Review outcomes", "text of [3]"):
        assert expected in text
    assert "75 % (41-93)" in text  # 6 of 8
    assert "Open what is closed." in text
    assert "drawer was closed" in text
    assert "utility +0.250" in text
    assert "+0.500" in text
    assert "-0.250" in text
    assert parse(text).tags.count("svg") == len(draw_charts(load_run(run_dir)))


def test_page_fetches_nothing_and_runs_nothing(run_dir):
    page = parse(write_report(run_dir).read_text())
    assert "script" not in page.tags
    assert [address for address in page.fetched if not address.startswith("#")] == []


def test_text_of_the_model_is_escaped(run_dir):
    text = write_report(run_dir).read_text()
    assert "demo &lt;run&gt;" in text
    assert "<b>You see a mug" not in text


def test_ids_of_the_charts_do_not_collide(run_dir):
    defined = []
    for _, svg in draw_charts(load_run(run_dir)):
        defined.append(set(re.findall(r'<clipPath id="([^"]+)"', svg)))
    assert len(defined) > 2
    assert all(defined)
    assert sum(map(len, defined)) == len(set.union(*defined))


def test_metrics_without_a_finite_value_are_not_drawn(run_dir):
    titles = [title for title, _ in draw_charts(load_run(run_dir))]
    assert "Success while training" in titles
    assert "Loss" not in titles


def test_page_of_a_run_that_has_just_begun(run_dir):
    for name in ("rounds", "eval"):
        shutil.rmtree(run_dir / name)
    (run_dir / "bank.json").unlink()
    (run_dir / "metrics.jsonl").write_text("")
    text = render(load_run(run_dir))
    for expected in ("No evaluation yet.", "No metrics yet.", "The bank is empty.", "No trajectories yet."):
        assert expected in text


def test_lineages_hold_the_whole_history_and_tell_removed_skills(run_dir):
    found = lineages(load_run(run_dir).edits)
    assert [(item.skill_id, [edit.kind for edit in item.edits], item.present) for item in found] == [
        ("gen_1", ["add", "update"], True),
        ("task_1", ["add", "remove"], False),
    ]


def test_trajectories_are_the_best_and_worst_of_the_widest_group(run_dir):
    run = load_run(run_dir)
    assert run.last_round == 3
    chosen = choose_trajectories(run.trajectories)
    assert [record["reward"]["value"] for record in chosen] == [1.0, 0.0]
    assert {record["group"] for record in chosen} == {"wide"}


def test_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(DataError, match="no config.json"):
        load_run(tmp_path)


def test_broken_line_is_named(run_dir):
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "rew')
    with pytest.raises(DataError, match=r"metrics.jsonl line 5 is no JSON"):
        load_run(run_dir)


def test_command_writes_the_page_and_prints_the_table(run_dir):
    done = subprocess.run([sys.executable, "-m", "sage_jax.report", str(run_dir)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "before, with skills" in done.stdout
    assert (run_dir / "report.html").exists()


def test_command_refuses_a_folder_that_is_no_run(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert f"error: {tmp_path} is no run folder" in capsys.readouterr().err
