"""An evaluation is one number: at any concurrency, of a run that was stopped, and of the exported model alone."""

import dataclasses

import pytest

from sage_jax.metrics import read_rows
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training.loop import train
from sage_jax.training.modes import evaluate_run, export

SHOP = {
    "benchmark": "webshop",
    "shop_products": 120,
    "shop_train": 20,
    "shop_text": "compact",
    "shop_page": 3,
    "eval_splits": ("test",),
    "eval_episodes": 6,
    "max_steps": 5,
    "sft_episodes": 0,
}


def after(folder, tag="after"):
    return read_rows(folder / "eval" / f"{tag}.json")


@pytest.mark.slow
def test_an_evaluation_is_the_same_number_whichever_way_it_is_made(tmp_path, tiny_folder, tiny_cache):
    def settings(name, **values):
        return tiny_settings(tmp_path / name, tiny_folder, tiny_cache, **{**SHOP, **values})

    whole = train(settings("whole"))
    rows = after(whole)
    assert {(row.family, row.retrieval) for row in rows} >= {("all", True), ("all", False)}
    assert all(row.n > 0 and row.failed == 0 for row in rows)
    assert len({row.tokens for row in rows}) > 1

    train(settings("stopped", rounds=1))
    assert after(tmp_path / "stopped") != rows
    assert after(train(settings("stopped"))) == rows

    for count in (1, 5):
        evaluate_run(settings("whole", concurrency=count), f"at_{count}")
        assert after(whole, f"at_{count}") == rows

    export(settings("whole"))
    alone = dataclasses.replace(
        settings("alone", bank=str(whole / "skills.json")),
        policy=dataclasses.replace(settings("alone").policy, model=str(whole / "export")),
    )
    evaluate_run(alone, "exported")
    assert after(tmp_path / "alone", "exported") == rows
