"""The scripted shopper solves every generated goal it tries, reads nothing but text, and follows its hints."""

import collections
import random

import pytest

from sage_jax.agents.chat import act_text, review_text
from sage_jax.agents.parsing import parse_act, parse_review
from sage_jax.agents.shopper import (
    QUERIES,
    Listed,
    ShopDemonstrator,
    Shopper,
    parse_instruction,
    query_skill,
    read_results,
    shopper_review,
)
from sage_jax.envs.webshop import WebShopFactory
from sage_jax.envs.webshop.catalogue import Catalogue, ensure_catalogue
from sage_jax.envs.webshop.twin import TwinSource
from sage_jax.errors import DataError
from sage_jax.skills import ToolCall
from sage_jax.types import Task

STEPS = 15


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    source = TwinSource(600, 1)
    folder = ensure_catalogue(source.identity(), source.products(), tmp_path_factory.mktemp("shop"))
    catalogue = Catalogue(folder)
    table = catalogue.goals("synthetic")
    return [
        Task(
            str(number), "webshop", "train", catalogue.category(int(table[number][0])),
            {"catalogue": str(folder), "goals": "synthetic", "goal": number, "seed": 1},
        )
        for number in range(120)
    ]  # fmt: skip


def play(env, task, query, *, limit=60, mode_check=None):
    """Plays with a hint; returns (won, steps, shopper)."""
    text = env.reset(task, 0).text
    shopper = Shopper(text, task.family, query_skill(query)[1], random.Random(0))
    admissible = ("search[<keywords>]",)
    for step in range(1, limit + 1):
        thought, action = shopper.act(text)
        parse = parse_act(act_text(thought, action), admissible=admissible)
        assert (parse.action, parse.flags) == (action, frozenset())
        result = env.step(action)
        assert not result.info["invalid"]
        text, admissible = result.text, result.admissible
        if result.done:
            return result.won, step, shopper
    return False, limit, shopper


@pytest.mark.parametrize(("mode", "size"), [("compact", 5), ("text", 10)])
def test_every_goal_is_solved_and_naming_options_is_the_short_way(tasks, mode, size):
    env, steps = WebShopFactory(mode=mode, page_size=size)(), collections.defaultdict(list)
    for task in tasks[:60]:
        for query in ("attributes", "options"):
            won, count, _ = play(env, task, query)
            assert won, (task.id, query)
            steps[query].append(count)
    assert max(steps["options"]) <= STEPS
    assert sum(steps["options"]) < sum(steps["attributes"])


def test_a_search_by_type_alone_is_the_long_way(tasks):
    env = WebShopFactory(mode="compact", page_size=5)()
    within = {query: sum(play(env, task, query, limit=STEPS)[0] for task in tasks[:40]) for query in QUERIES}
    assert within["type"] < within["attributes"] <= within["options"] == 40


@pytest.mark.parametrize(
    ("text", "family", "goal"),
    [
        (
            "Find me vegan, cruelty free face cream with tea tree with scent: rose, and pack: 2 pieces, and price "
            "lower than 40.00 dollars",
            "beauty",
            ("face cream", ("vegan", "cruelty free", "tea tree"), {"scent": "rose", "pack": "2 pieces"}, 40),
        ),
        ("I want kosher tea", "grocery", ("tea", ("kosher",), {}, 10**6)),
    ],
)
def test_an_instruction_is_read(text, family, goal):
    read = parse_instruction(text, family)
    assert (read.kind, read.attributes, read.options, read.limit) == goal


def test_other_instructions_are_refused():
    for family in ("beauty", "toys"):
        with pytest.raises(DataError, match="names no product of department"):
            parse_instruction("i need a spaceship", family)


def test_results_are_read_with_their_prices():
    parts = "Back to Search | Page 1 (Total results: 2) | K42 | Kavi Tea | $5.0 | B10 | Lumo Tea | $7.5 to $9.0"
    assert read_results(parts.split(" | ")) == [
        Listed("K42", "Kavi Tea", 5.0, 5.0),
        Listed("B10", "Lumo Tea", 7.5, 9.0),
    ]


def test_without_a_hint_the_search_is_drawn_and_with_one_it_is_followed(tasks):
    text = WebShopFactory(mode="compact")().reset(tasks[0], 0).text
    family = tasks[0].family
    drawn = collections.Counter(Shopper(text, family, "", random.Random(seed)).query for seed in range(90))
    assert min(drawn[query] for query in QUERIES) > 15
    for query in QUERIES:
        assert Shopper(text, family, f"search with {query}", random.Random(0)).query == query
    assert Shopper(text, family, "search with type . search with options", random.Random(0)).query == "options"


def test_reviews_write_down_what_worked_and_can_be_read_back(tasks):
    env, names = WebShopFactory(mode="compact", page_size=5)(), collections.Counter()
    for seed, task in enumerate(tasks[:60]):
        text = env.reset(task, 0).text
        demonstrator = ShopDemonstrator(text, task.family, random.Random(seed))
        shopper = demonstrator._shopper
        for _ in range(60):
            result = env.step(shopper.act(text)[1])
            text = result.text
            if result.done:
                break
        thought, call = demonstrator.review()
        parse = parse_review(review_text(thought, call))
        assert isinstance(parse.call, ToolCall)
        assert parse.flags == frozenset()
        names[call["name"]] += 1
        if call["name"] == "propose_skill":
            assert call["arguments"]["category"] == task.family
            assert call["arguments"]["principle"] == f"search with {shopper.last_query}"
        if shopper.hint == shopper.last_query:
            assert call["name"] == "keep_skill"
    assert set(names) >= {"keep_skill", "propose_skill"}


def test_a_hint_that_failed_is_replaced_or_joined(tasks):
    text = WebShopFactory(mode="compact")().reset(tasks[0], 0).text
    shopper = Shopper(text, tasks[0].family, "search with type", random.Random(0))
    shopper._memory.tried.append("options")
    calls = {shopper_review(shopper, "beauty", random.Random(seed))[1]["name"] for seed in range(20)}
    assert calls == {"update_skill", "propose_skill"}
