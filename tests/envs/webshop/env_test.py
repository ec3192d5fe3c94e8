"""The shop as an environment, alone and in worker processes; catalogues on disk; taggers."""

import asyncio
import json
import pickle

import pytest

from sage_jax.envs.pool import EnvPool
from sage_jax.envs.webshop import WebShopFactory
from sage_jax.envs.webshop.catalogue import MANIFEST, Catalogue, ensure_catalogue
from sage_jax.envs.webshop.nouns import make_tagger, rule_nouns
from sage_jax.envs.webshop.twin import TwinSource
from sage_jax.errors import ConfigError, DataError, EnvError


def play(env, task):
    """Plays the oracle's actions; returns the steps."""
    steps, action = [], env.reset(task, 0, expert=True).info["expert_action"]
    while action is not None:
        steps.append(env.step(action))
        action = steps[-1].info["expert_action"]
    return steps


def test_an_episode_is_paid_once_at_its_end(make_task):
    env = WebShopFactory()()
    observation = env.reset(make_task(), 0)
    assert observation.info == {"task": observation.text.split(" [SEP] ")[2], "family": make_task().family}
    *way, last = play(env, make_task())
    assert [step.reward for step in way] == [0.0] * len(way)
    assert not any(step.done or step.won or step.info["invalid"] for step in way)
    assert (last.reward, last.done, last.won, last.admissible) == (1.0, True, True, ())
    assert last.info["score"]["value"] == 1.0
    assert last.info["nouns"] == "rules"
    with pytest.raises(EnvError, match="call reset"):
        env.step("click[buy now]")


def test_a_poor_purchase_is_done_and_not_won(make_task):
    env = WebShopFactory()()
    env.reset(make_task(), 0)
    env.step("search[lamp]")
    listed = [action for action in env.step("nonsense").admissible if action.startswith("click[")]
    env.step(listed[-1])
    result = env.step("click[buy now]")
    assert result.done
    assert not result.won
    assert 0.0 <= result.reward < 1.0


def test_what_cannot_be_done_shows_the_page_again(make_task):
    env = WebShopFactory(mode="compact", page_size=3)()
    first = env.reset(make_task(), 0)
    result = env.step("click[buy now]")
    assert (result.text, result.admissible, result.info["invalid"]) == (first.text, first.admissible, True)
    assert len(env.step("search[lamp]").admissible) == 2 + 3


def test_episodes_leave_nothing_behind(make_task):
    factory = WebShopFactory()
    env = factory()
    first = [step.text for step in play(env, make_task(1))]
    env.reset(make_task(2), 0)
    env.step("search[lamp]")
    assert [step.text for step in play(env, make_task(1))] == first
    assert len(factory._open) == 1
    env.close()
    with pytest.raises(EnvError, match="call reset"):
        env.step("search[lamp]")


def test_a_factory_is_pickled_without_its_catalogue(make_task):
    factory = WebShopFactory(mode="compact")
    factory().reset(make_task(), 0)
    copy = pickle.loads(pickle.dumps(factory))
    assert (copy.mode, copy._open) == ("compact", {})


def test_workers_play_the_same_episodes(make_task):
    tasks = [make_task(number) for number in range(6)]
    alone = [[step.text for step in play(WebShopFactory()(), task)] for task in tasks]

    async def one(pool, task):
        texts, observation = [], await pool.reset(task.id, task, 0, expert=True)
        action = observation.info["expert_action"]
        while action is not None:
            result = await pool.step(task.id, action)
            texts.append(result.text)
            action = result.info["expert_action"]
        return texts

    async def everything():
        with EnvPool(WebShopFactory(), workers=2) as pool:
            played = await asyncio.gather(*(one(pool, task) for task in tasks))
            with pytest.raises(DataError, match="no complete catalogue"):
                await pool.reset("x", make_task(0, catalogue="/nowhere"), 0)
        return played

    assert asyncio.run(everything()) == alone


def test_a_task_that_lacks_something_is_named(make_task):
    env = WebShopFactory()()
    task = make_task()
    broken = type(task)(task.id, "webshop", "test", "beauty", {"goal": 1})
    with pytest.raises(DataError, match="webshop/test/0: the payload lacks catalogue, goals, seed"):
        env.reset(broken, 0)
    with pytest.raises(DataError, match="goal 999999 of kind"):
        env.reset(make_task(0, goal=999999), 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"mode": "html"}, "shop_text='html': expected one of text"), ({"page_size": 0}, "shop_page=0")],
)
def test_options_that_cannot_be(values, message):
    with pytest.raises(ConfigError, match=message):
        WebShopFactory(**values)


def test_a_catalogue_is_built_once_and_whole(tmp_path):
    source = TwinSource(60, 1)
    folder = ensure_catalogue(source.identity(), source.products(), tmp_path)
    assert ensure_catalogue(source.identity(), iter(()), tmp_path) == folder  # nothing is read again
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    catalogue = Catalogue(folder)
    products = list(source.products())
    assert [catalogue.product(number) for number in range(len(catalogue))] == products
    assert [catalogue.find(product.asin) for product in products] == list(range(60))
    assert catalogue.find("nothing") is None
    assert [catalogue.category(number) for number in range(60)] == [product.category for product in products]
    with pytest.raises(DataError, match="no products"):
        ensure_catalogue({"other": 1}, iter(()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_catalogue_of_another_version_or_in_pieces_is_refused(tmp_path):
    source = TwinSource(58, 1)
    folder = ensure_catalogue(source.identity(), source.products(), tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"version": 0}))
    with pytest.raises(DataError, match="version 0, expected"):
        Catalogue(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    (folder / "offsets.npy").unlink()
    with pytest.raises(DataError, match="no complete catalogue"):
        Catalogue(folder)


def test_nouns_of_a_title():
    title = "Women's Casual Long-Sleeve Shirt for 2 really soft and Comfortable office days, XL"
    assert rule_nouns(title) == ("women", "casual", "long", "sleeve", "shirt", "comfortable", "office", "days", "xl")
    assert rule_nouns("the 100 of 3") == ()
    assert make_tagger("rules")(title) == rule_nouns(title)


def test_a_tagger_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="shop_nouns='xx_no_such'.*or use 'rules'"):
        make_tagger("xx_no_such")
