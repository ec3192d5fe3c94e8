"""WebShop as a benchmark: splits, families, sources; and a whole run on it."""

import pytest

from sage_jax import config
from sage_jax.benchmarks.webshop import Webshop
from sage_jax.envs.webshop import WebShopFactory
from sage_jax.errors import ConfigError, DataError
from sage_jax.metrics import read_rows
from sage_jax.settings import RunSettings
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training import loop

SMALL = {"benchmark": "webshop", "source": "generated", "shop_products": 150, "eval_splits": ("test",)}
RUN = SMALL | {
    "shop_text": "compact", "shop_page": 2, "shop_train": 12, "max_steps": 8, "max_length": 768, "row_length": 768,
    "sft_episodes": 6, "act_tokens": 12, "review_tokens": 24, "eval_episodes": 5, "rounds": 1, "outcome": "score",
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("shops")


def benchmark(cache, **values) -> Webshop:
    return config.to_dataclass(SMALL | {"cache": str(cache)} | values, RunSettings).open_benchmark()


def load(made, *splits):
    return made.load(splits, lambda done, wanted: None)


def test_the_agents_cut_leaves_500_goals_to_the_test(cache):
    tasks = load(benchmark(cache), "train", "test")
    assert [task.payload["goal"] for task in tasks["test"]] == list(range(500))
    assert [task.payload["goal"] for task in tasks["train"]] == list(range(500, 500 + len(tasks["train"])))
    assert {task.family for task in tasks["train"]} == {"beauty", "fashion", "electronics", "grocery", "garden"}
    assert [task.id for task in tasks["test"]] == sorted(task.id for task in tasks["test"])
    assert len({task.id for tasks in tasks.values() for task in tasks}) == 500 + len(tasks["train"])
    assert len(load(benchmark(cache, shop_train=7), "train")["train"]) == 7
    assert load(benchmark(cache), "eval")["eval"] == ()


def test_the_originals_cut_has_an_evaluation_split(cache):
    made = benchmark(cache, shop_cuts="original", shop_products=400)
    tasks = load(made, "train", "eval", "test")
    assert [tasks[split][0].payload["goal"] for split in ("test", "eval", "train")] == [0, 500, 1500]
    assert len(tasks["eval"]) == 1000


def test_the_factory_has_the_options_of_the_run(cache):
    made = benchmark(cache, shop_text="text_rich", shop_page=4)
    assert made.factory() == WebShopFactory(mode="text_rich", page_size=4, nouns="rules")


def test_official_data_must_be_named(cache, monkeypatch, tmp_path):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    with pytest.raises(ConfigError, match="set WEBSHOP_DATA to the data folder"):
        load(benchmark(cache, source="official"), "test")
    assert load(benchmark(cache, source="auto"), "test")["test"]
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    with pytest.raises(DataError, match="items_shuffle_1000.json is missing"):
        load(benchmark(cache, source="auto"), "test")


def test_a_split_without_goals_names_its_key(cache):
    made = benchmark(cache)
    assert (made.size_key("train"), made.size_key("eval")) == ("shop_products", "shop_cuts")


@pytest.mark.parametrize("method", ["skillmaster", pytest.param("grpo", marks=pytest.mark.slow)])
def test_a_run_passes_every_stage_and_reports_scores(method, tiny_folder, tiny_cache, tmp_path):
    run = tiny_settings(tmp_path, tiny_folder, tiny_cache, **RUN, method=method)
    folder = loop.train(run)
    for tag in ("before", "after"):
        rows = read_rows(folder / "eval" / f"{tag}.json")
        whole = [row for row in rows if row.family == "all"]
        assert all(row.n == 5 and row.failed == 0 for row in whole)
        assert all(0.0 <= row.success <= row.score <= 1.0 for row in rows)
        assert {row.split for row in rows} == {"test"}
        assert len({row.family for row in rows}) == 6
