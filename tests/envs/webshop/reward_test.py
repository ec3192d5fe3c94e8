"""The score against an independent float64 reference written from the published rules, and by hand."""

import functools
import random
import re

import numpy as np
import pytest

from sage_jax.envs.webshop.goals import NO_LIMIT, Goal, make_goal, product_price
from sage_jax.envs.webshop.nouns import rule_nouns
from sage_jax.envs.webshop.product import Product
from sage_jax.envs.webshop.reward import COLOURS, matches, option_hits, plain_colour, score_purchase, type_reward


# --- the reference: loops, no library -------------------------------------------------------------------------------
def longest_common_subsequence(a, b):
    row = np.zeros(len(b) + 1, np.int64)
    for letter in a:
        previous = 0
        for j, other in enumerate(b, start=1):
            previous, row[j] = row[j], previous + 1 if letter == other else max(row[j], row[j - 1])
    return int(row[-1])


def ratio(a, b):
    """200 * LCS / (|a| + |b|)."""
    return np.float64(200) * longest_common_subsequence(a, b) / (len(a) + len(b)) if a or b else np.float64(0)


@functools.cache
def token_set_ratio(a, b):
    first, second = (
        set(re.sub(r"\W", " ", "".join(c for c in text if not 128 <= ord(c) < 256)).lower().split()) for text in (a, b)
    )
    if not first or not second:
        return 0.0
    both = sorted(first & second)
    one, two = sorted(first - second), sorted(second - first)
    if both and (not one or not two):
        return 100.0
    if not both:
        return float(ratio(" ".join(one), " ".join(two)))
    shared, left, right = " ".join(both), " ".join(both + one), " ".join(both + two)
    return float(max(ratio(shared, left), ratio(shared, right), ratio(left, right)))


def colour(text):
    for name in COLOURS:
        if name in text:
            return name
    return text


def reference(goal, product, options, price):
    wanted, found = rule_nouns(goal.title), rule_nouns(product.title)
    title = np.float64(len(set(wanted) & set(found))) / len(wanted) if wanted else np.float64(0.2)
    shared = {p.strip() for p in goal.product_category.split("›")} & {
        p.strip() for p in product.product_category.split("›")
    }
    kind = np.float64(1.0)
    if not (goal.query == product.query or len(shared) >= 2 or title > 0.2):
        kind = np.float64(0.5)
    if title < 0.1:
        kind = np.float64(0.1)
    if title == 0:
        kind = np.float64(0)
    hits = 0
    for want in goal.attributes:
        hit = False
        for has in product.attributes:
            hit = hit or int(round(token_set_ratio(has, want))) > 85
        for text in (product.title, " ".join(product.bullets), product.description):
            hit = hit or want in text.lower()
        hits += hit
    for want in goal.options:
        hits += any(int(round(token_set_ratio(colour(value), colour(want)))) > 85 for value in options.values())
    hits += price <= goal.price_upper
    return kind * hits / np.float64(len(goal.attributes) + len(goal.options) + 1)


def triples(catalogue, count, seed=0):
    """Yields (goal, product, options, price): half of the products and options near the goal, half anywhere."""
    rng = random.Random(seed)
    goals = len(catalogue.goals("synthetic"))
    for _ in range(count):
        goal = make_goal(catalogue, "synthetic", rng.randrange(goals), seed)
        near = (*catalogue.search(goal.title)[:8], goal.product)
        number = rng.choice(near) if rng.random() < 0.5 else rng.randrange(len(catalogue))
        product = catalogue.product(number)
        options = {}
        for name, values in product.options.items():
            wanted = [value for value in values if value in goal.options]
            if rng.random() < 0.8:
                options[name] = wanted[0] if wanted and rng.random() < 0.6 else rng.choice(values)
        yield goal, product, options, product_price(product, seed)


def check(catalogue, count):
    values = []
    for goal, product, options, price in triples(catalogue, count):
        ours = score_purchase(goal, product, options, price, rule_nouns).value
        assert ours == pytest.approx(reference(goal, product, options, price), abs=1e-15), (goal, product.asin, options)
        values.append(ours)
    assert 1.0 in values
    assert 0.0 in values
    assert len(set(values)) > 10  # neither all won nor all lost
    return values


def test_generated_triples_score_as_the_rules_say(twin):
    check(twin, 2000)


def test_official_triples_score_as_the_rules_say(official):
    check(official, 2000)


# --- by hand --------------------------------------------------------------------------------------------------------
PRODUCT = Product(
    asin="A1",
    title="Kavi Vegan Shampoo",
    description="Made without sulfates.",
    bullets=("for dry hair",),
    category="beauty",
    query="shampoo",
    product_category="Beauty › Hair › Shampoo",
    prices=(20.0,),
    options={"color": ("deep red",), "size": ("8 ounce",)},
    attributes=("vegan", "long lasting"),
)
GOAL = Goal("", 0, "A2", "Lumo Shampoo", "beauty", "shampoo", "Beauty › Hair › Shampoo", ("vegan",), (), 30.0)


def score(goal=GOAL, product=PRODUCT, options=None, price=20.0):
    return score_purchase(goal, product, options or {}, price, rule_nouns)


def replaced(thing, **values):
    import dataclasses

    return dataclasses.replace(thing, **values)


def test_worked_case():
    # Wanted: vegan (listed), dry hair (in a bullet), cheap (nowhere); options red (deep red -> red) and 16 ounce (no);
    # 20 <= 30. (2 + 1 + 1) / (3 + 2 + 1) = 4 / 6. Nouns lumo, shampoo: one of two shared, .5 > .2: type 1.
    goal = replaced(GOAL, attributes=("vegan", "dry hair", "cheap"), options=("red", "16 ounce"))
    result = score(goal, options={"color": "deep red", "size": "8 ounce"})
    assert (result.attributes, result.options, result.price, result.r_type) == (2, 1, True, 1.0)
    assert result.value == pytest.approx(4 / 6, abs=1e-15)
    assert score(goal, options={"color": "deep red"}, price=30.01).value == pytest.approx(3 / 6, abs=1e-15)


@pytest.mark.parametrize(
    ("title", "query", "path", "expected"),
    [
        ("Lumo Shampoo", "x", "A › B", (1.0, 1.0)),
        ("Alvo Shampoo", "x", "A › B", (1.0, 0.5)),  # .5 > .2
        ("Table Lamp", "shampoo", "Beauty › Hair", (0.0, 0.0)),  # no common noun overrides query and category
    ],
)
def test_the_type_of_a_product(title, query, path, expected):
    product = replaced(PRODUCT, title=title, query=query, product_category=path)
    assert type_reward(GOAL, product, rule_nouns) == expected


def test_a_far_title_halves_or_nearly_voids():
    long = replaced(GOAL, title=" ".join(f"Noun{chr(97 + i)}" for i in range(9)) + " Shampoo", query="y")
    one_in_ten = replaced(PRODUCT, product_category="X › Y")
    assert type_reward(long, one_in_ten, rule_nouns) == (0.5, 0.1)
    assert type_reward(replaced(long, query="shampoo"), one_in_ten, rule_nouns) == (1.0, 0.1)
    assert type_reward(replaced(long, product_category="X › Y › Z"), one_in_ten, rule_nouns) == (1.0, 0.1)
    longer = replaced(long, title=long.title + " Nounx")
    assert type_reward(longer, one_in_ten, rule_nouns) == (0.1, pytest.approx(1 / 11))
    nameless = replaced(GOAL, title="100", query="y", product_category="Z")
    assert type_reward(nameless, PRODUCT, rule_nouns) == (0.5, 0.2)


def test_texts_match_above_85_after_rounding():
    assert matches("long lasting", "lasting long")
    assert matches("Tea Tree Oil", "tea-tree oil!")
    assert not matches("vegan", "wireless")
    assert not matches("", "")
    assert matches("é vegan", "vegan")
    assert plain_colour("dark navy stripe") == "dark"
    assert option_hits(("navy blue", "x-large"), ("light blue", "x large")) == 2  # blue = blue


def test_without_a_limit_any_price_is_within():
    assert score(replaced(GOAL, price_upper=NO_LIMIT), price=99999.0).value == 1.0


def test_options_and_attributes_have_no_order():
    goal = replaced(GOAL, attributes=("vegan", "dry hair", "cheap"), options=("red", "8 ounce"))
    options = {"color": "deep red", "size": "8 ounce"}
    turned = replaced(goal, attributes=goal.attributes[::-1], options=goal.options[::-1])
    assert score(goal, options=options) == score(turned, options=dict(reversed(options.items())))
