"""The shopping corpus: traces of real visits, exercises that can be answered, words that a small tokenizer holds."""

import random
import re

import pytest

from sage_jax.agents.parsing import Flag, parse_act, parse_review
from sage_jax.data import base_corpus
from sage_jax.data.shopping import (
    EXERCISES,
    Stall,
    conversations,
    corpus_words,
    limit_exercise,
    option_exercise,
    pick_exercise,
    query_exercise,
    shopping_trace,
)
from sage_jax.data.word_tokenizer import UNK, build_tokenizer, split_words
from sage_jax.envs.webshop import twin
from sage_jax.skills import ToolCall


def test_a_stall_sells_a_few_types_and_finds_them():
    stall = Stall(random.Random(0), types=3, each=6)
    kinds = {product.query for product in stall.products}
    assert 2 <= len(kinds) <= 3
    assert len({product.asin for product in stall.products}) == len(stall.products)
    for kind in kinds:
        found = [stall.product(number).query for number in stall.search(f"{kind} spaceship")]
        assert found[: found.count(kind)] == [kind] * found.count(kind)
        assert found.count(kind) >= 6
    assert stall.search("spaceship") == ()


def test_traces_alternate_and_mostly_win():
    won = 0
    for seed in range(40):
        messages = shopping_trace(random.Random(seed), noise=0.0, review=1.0)
        assert [role for role, _, _ in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all(trained == (role == "assistant") for role, _, trained in messages)
        for role, text, _ in messages[:-2]:
            if role == "assistant":
                assert parse_act(text).flags == frozenset()
        review = parse_review(messages[-1][1])
        assert isinstance(review.call, ToolCall)
        assert review.flags == frozenset()
        won += "success" in messages[-2][1]
        assert ("success" in messages[-2][1]) == ("Score" not in messages[-3][1] and "buy now" in messages[-3][1])
    assert won >= 30


def test_slips_carry_no_loss_and_are_recovered_from():
    slips = won = 0
    for seed in range(60):
        messages = shopping_trace(random.Random(seed), noise=0.1, review=1.0, max_steps=30)
        slips += sum(role == "assistant" and not trained for role, _, trained in messages)
        won += "success" in messages[-2][1]
    assert slips > 20
    assert won >= 45


def test_a_hint_in_the_skills_is_followed():
    for seed in range(60):
        messages = shopping_trace(random.Random(seed), noise=0.0)
        hints = re.findall(r"search with (\w+)", messages[0][1])
        if hints:
            assert f"skill : search with {hints[-1]} ." in messages[1][1]


def test_picked_products_are_the_ones_asked_for():
    for seed in range(50):
        (_, question, _), (_, answer, trained) = pick_exercise(random.Random(seed))
        assert trained
        rows = re.findall(r"([A-Z]\d\d) \| ([^|]+) \|", question)
        for asked, asin in re.findall(r"need ([a-z ]+) \. see ([a-z]\d\d) \.", answer):
            first = next(name for name, title in rows if set(asked.split()) <= set(title.lower().split()))
            assert first.lower() == asin


def test_limits_and_options_are_answered_truly():
    for seed in range(50):
        _, (_, answer, _) = limit_exercise(random.Random(seed))
        for price, limit, said in re.findall(r"(\d+) under (\d+) (yes|no)", answer):
            assert (said == "yes") == (int(price) < int(limit))
        (_, page, _), (_, answer, _) = option_exercise(random.Random(seed))
        for name, value, said in re.findall(r"need (\w+) ([a-z0-9 ]+) \. (yes|none)", answer):
            shown = page.rstrip(" .").split(f"{name} | ")[1].split(" | ")
            own = shown[: next((i for i, part in enumerate(shown) if part in twin.OPTIONS), len(shown))]
            assert (said == "yes") == (value in own)


def test_queries_follow_the_rule():
    for seed in range(30):
        (_, page, _), (_, answer, _) = query_exercise(random.Random(seed))
        action = parse_act(answer).action
        assert Flag.NO_ACTION not in parse_act(answer).flags
        options = re.findall(r"(?:color|size|scent|flavor|pack): ([a-z0-9 ]+)", page)
        assert all(value in action for value in options) == ("search with options" in page)


def test_a_small_tokenizer_holds_every_word_of_shop_and_household():
    shop, household = corpus_words(), base_corpus.corpus_words()
    assert len(shop - household) < 300
    tokenizer = build_tokenizer(shop | household, 1024)
    rng = random.Random(7)
    stream = conversations(rng, lambda: 0.5)
    for _ in range(80):
        for _, text, _ in next(stream):
            assert UNK not in tokenizer.tokenize(text)
            assert set(split_words(text)) <= shop | household


@pytest.mark.parametrize("done", [0.0, 1.0])
def test_exercises_come_first_and_stay(done):
    stream = conversations(random.Random(0), lambda: done)
    short = sum(len(next(stream)) == 2 for _ in range(100))
    assert short > 60 if done == 0 else 15 < short < 50


def test_the_corpus_is_a_function_of_the_seed():
    for make in (*EXERCISES, shopping_trace):
        assert make(random.Random(5)) == make(random.Random(5)) != make(random.Random(6))


def test_a_products_id_says_nothing_of_its_kind():
    stalls = [Stall(random.Random(seed), types=2, each=6) for seed in range(60)]
    by_kind: dict[str, set[str]] = {}
    for stall in stalls:
        assert len({product.asin for product in stall.products}) == len(stall.products)
        for product in stall.products:
            by_kind.setdefault(product.query, set()).add(product.asin)
    most = max(by_kind.values(), key=len)
    assert len(most) > 12  # a kind has six products in a stall: with the catalogue's ids there would be six
