"""Records of runs and the parts of the results page made from them."""

import dataclasses
import json

import pytest

from sage_jax.errors import DataError
from sage_jax.metrics import EvalRow
from sage_jax.report import records, result_details, results
from sage_jax.report.records import Record
from sage_jax.report.sweep import SeedRun


def row(success, *, retrieval=False, score=None):
    score = success if score is None else score
    return EvalRow("test", retrieval, "all", 8, 0, success, 0.0, 1.0, 10.0, 100.0, score)


def run(method, seed, before, after, **config):
    config = {"method": method, "benchmark": "webshop", "lr": 0.1, "name": f"{method}-{seed}", **config}
    lines = [{"step": 1, "reward/success": 1 / 3, "loss/total": 5.0}, {"step": 2, "reward/success": 0.5}]
    return SeedRun(method, seed, {"before": before, "after": after}, lines, "abcdef0123456789", config, {"jax": "1"})


@pytest.fixture
def record():
    runs = (
        run("grpo", 0, [row(0.25)], [row(0.5)]),
        run("grpo", 1, [row(0.5)], [row(0.5)]),
        run("skillmaster", 0, [row(0.25)], [row(0.75, retrieval=True, score=0.875), row(0.5)]),
        run("skillmaster", 1, [row(0.5)], [row(1.0, retrieval=True), row(0.75)]),
    )
    commands = {(one.variant, one.seed): f"python -m x --{one.variant} {one.seed}" for one in runs}
    return Record("demo", ("skillmaster", "grpo"), commands, runs)


def test_a_record_is_read_as_it_was_written_without_what_is_of_one_machine(record, tmp_path):
    records.write_record(tmp_path / "a" / "demo.json", record)
    again = records.read_record(tmp_path / "a" / "demo.json")
    assert again.commands == record.commands
    assert again.runs[2].evals == record.runs[2].evals
    assert again.runs[0].metrics == [{"step": 1, "reward/success": 0.333333}, {"step": 2, "reward/success": 0.5}]
    assert again.runs[0].config == {"method": "grpo", "benchmark": "webshop", "lr": 0.1}
    records.write_record(tmp_path / "again.json", again)
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "a" / "demo.json").read_bytes()


def test_a_broken_record_is_named(tmp_path):
    (tmp_path / "x.json").write_text('{"name": "x"}')
    with pytest.raises(DataError, match=r"x.json is no record of runs.*make results"):
        records.read_record(tmp_path / "x.json")


def test_new_runs_replace_those_of_their_seed_and_others_stay(record):
    newer = dataclasses.replace(record.runs[0], git="fedcba9876543210")
    merged = record.merge(Record("demo", ("skillmaster", "grpo"), {("grpo", 0): "python -m y"}, (newer,)))
    assert [(one.variant, one.seed, one.git[:3]) for one in merged.runs] == [
        ("grpo", 0, "fed"), ("grpo", 1, "abc"), ("skillmaster", 0, "abc"), ("skillmaster", 1, "abc"),
    ]  # fmt: skip
    assert merged.commands["grpo", 0] == "python -m y"
    assert merged.commands["grpo", 1] == record.commands["grpo", 1]


def test_the_tables_of_a_sweep(record, tmp_path):
    text = results.render_sweep(record, tmp_path)
    # skillmaster: before (25, 50), with skills (75, 100), without (50, 75), gains 50 and 50; grpo: gains 25 and 0.
    assert (
        "| test | skillmaster | 37.5 ± 17.7 | 87.5 ± 17.7 | 62.5 ± 17.7 | +50.0 [+50.0, +50.0] p 0.5, n 2 | 75, 100 |"
    ) in text
    assert "| test | grpo | 37.5 ± 17.7 | - | 50.0 ± 0.0 | +12.5" in text
    assert "- test: grpo minus skillmaster, as used: -37.5" in text
    # scores of skillmaster are (0.875 + 1) / 2; those of grpo are its successes, so it has no row
    assert "| test | skillmaster | 37.5 ± 17.7 | 93.8 ± 8.8 |" in text
    assert text.count("| test | grpo |") == 1
    assert "    python -m x --grpo 0\n" in text
    assert "(figures/demo.svg)" in text
    assert (tmp_path / "demo.svg").stat().st_size > 1000
    assert text == results.render_sweep(record, tmp_path)


def test_a_part_may_show_some_variants_in_its_own_order(record, tmp_path):
    text = results.render_sweep(record.only(["grpo", "skillmaster"]), tmp_path)
    assert "- test: skillmaster minus grpo, as used: +37.5" in text
    assert "skillmaster" not in results.render_sweep(record.only(["grpo"]), tmp_path)


def test_further_tables_are_added_where_they_are_asked_for(record, tmp_path):
    plain = results.render_sweep(record, tmp_path)
    more = results.render_sweep(record, tmp_path, ["families", "generations"])
    assert "| test | all |" in more
    assert "| test | all |" not in plain
    with pytest.raises(DataError, match="no table curves; there are families, chains, generations"):
        results.parts("<!-- begin sweep=s.py with=families,curves -->\n<!-- end -->\n")


def test_success_by_kind_of_task(record):
    def kinds(one, easy, hard):
        rows = [
            dataclasses.replace(one, family="easy", success=easy),
            dataclasses.replace(one, family="hard", success=hard),
        ]
        return [one, *rows]

    bare, used = row(0.25), row(0.75, retrieval=True)
    mine = [
        run("skillmaster", seed, kinds(bare, 0.5, 0.0), [*kinds(bare, 0.5, 0.0), *kinds(used, 1.0, share)])
        for seed, share in enumerate((0.25, 0.75))
    ]
    assert result_details.families_table(dataclasses.replace(record, runs=tuple(mine))) == [
        "| test | easy | hard | all |",
        "| --- | --- | --- | --- |",
        "| skillmaster, before, without skills | 50 ± 0 | 0 ± 0 | 25 ± 0 |",
        "| skillmaster, before | 50 ± 0 | 0 ± 0 | 25 ± 0 |",
        "| skillmaster, after | 100 ± 0 | 50 ± 35 | 75 ± 0 |",
    ]


def test_the_curve_over_generations_is_a_mean_over_seeds(record, tmp_path):
    def points(*values):
        return {"test": [{"generation": i, "reward": r, "solved": s} for i, (r, s) in enumerate(values)]}

    mine = [
        dataclasses.replace(
            record.runs[2], generations={"before": points((0, 0)), "after": points((0, 0), (0.5, 0.75))}
        ),
        dataclasses.replace(
            record.runs[3], generations={"before": points((0.5, 0.5)), "after": points((0, 0), (1, 1))}
        ),
        record.runs[0],
    ]
    record = dataclasses.replace(record, runs=tuple(mine))
    assert result_details.generations_table(record) == [
        "| test | generation 0 | generation 1 |",
        "| --- | --- | --- |",
        "| skillmaster, before | 25 / 25 |  |",
        "| skillmaster, after | 0 / 0 | 75 / 88 |",
    ]
    records.write_record(tmp_path / "demo.json", record)
    assert result_details.generations_table(records.read_record(tmp_path / "demo.json"))[3] == (
        "| skillmaster, after | 0 / 0 | 75 / 88 |"
    )


def test_what_scenarios_came_to(record):
    used = dataclasses.replace(row(0.5, retrieval=True), scenario_success=0.25, use_rate=0.9)
    mine = (run("skillmaster", 0, [row(0.25)], [used, row(0.5)]),)
    assert result_details.chains_table(dataclasses.replace(record, runs=mine)) == [
        "| test | TGC, % | SGC, % | steps | generated tokens | used a skill where one was shown, % |",
        "| --- | --- | --- | --- | --- | --- |",
        "| skillmaster, before, without skills | 25.0 | - | 10.00 | 100 | - |",
        "| skillmaster, before | 25.0 | - | 10.00 | 100 | - |",
        "| skillmaster, after, with skills | 50.0 | 25.0 | 10.00 | 100 | 90 |",
        "| skillmaster, after, without skills | 50.0 | - | 10.00 | 100 | - |",
    ]


def test_the_matrix_takes_methods_as_their_configs_have_them(record):
    changed = dataclasses.replace(run("grpo", 2, [row(0.0)], [row(0.0)], gamma=3), variant="ablated")
    other = Record("other", ("x",), {("x", 0): ""}, (
        dataclasses.replace(run("sage", 0, [row(0.1)], [row(0.2)], benchmark="gaia"), variant="x"),
    ))  # fmt: skip
    record = dataclasses.replace(record, runs=(*record.runs, changed))
    lines = results.render_matrix([record, other]).splitlines()
    assert lines[2] == "| webshop, test | 38 ± 18 → 50 ± 0 (2) | 38 ± 18 → 88 ± 18 (2) | - | - |"
    assert lines[3] == "| gaia, test | - | - | 10 → 20 (1) | - |"
    assert lines[-1].endswith("5 runs.*")
    assert results.render_matrix([]) == "No run is recorded yet."


def test_checksums_follow_configuration_and_versions_and_not_the_machine(record):
    text = results.checksums(record.runs)
    assert "code abcdef012345, 4 runs" in text

    def changed(**values):
        first = record.runs[0]
        return results.checksums([dataclasses.replace(first, **values), *record.runs[1:]])

    config = record.runs[0].config
    assert changed(config={**config, "name": "other", "run_dir": "elsewhere"}) == text
    configs, versions = (part.split("`")[1] for part in text.split(", code")[0].split("versions"))
    assert configs not in changed(config={**config, "lr": 0.2})
    assert versions in changed(config={**config, "lr": 0.2})
    assert versions not in changed(versions={"jax": "2"})
    assert "several revisions" in changed(git="0123456789abcdef")


def test_only_what_is_between_the_comments_changes():
    page = "a\n<!-- begin matrix -->\nold\n<!-- end -->\nb\n<!-- begin sweep=s.py only=x,y -->\n<!-- end -->\nc\n"
    assert results.parts(page) == [{"matrix": ""}, {"sweep": "s.py", "only": "x,y"}]
    new = results.rewrite(page, lambda words: json.dumps(words))
    assert new == (
        'a\n<!-- begin matrix -->\n{"matrix": ""}\n<!-- end -->\nb\n'
        '<!-- begin sweep=s.py only=x,y -->\n{"sweep": "s.py", "only": "x,y"}\n<!-- end -->\nc\n'
    )
    assert results.rewrite(new, lambda words: json.dumps(words)) == new


@pytest.mark.parametrize("spec", ["sweap=s.py", "sweep=s.py seeds=1", "matrix=1", ""])
def test_a_comment_that_says_something_else_is_refused(spec):
    with pytest.raises(DataError, match="expected 'matrix', or"):
        results.parts(f"<!-- begin {spec} -->\n<!-- end -->\n")
