"""The generated catalogue: its products, its ids, its words."""

import re

import pytest

from sage_jax.envs.webshop.goals import make_goal
from sage_jax.envs.webshop.pages import detail_page, item_page, results_page
from sage_jax.envs.webshop.twin import DEPARTMENTS, TwinSource, make_asin, make_product, words
from sage_jax.errors import ConfigError


def test_ids_are_short_and_unique():
    for count in (2000, 2340, 2341, 30_000):
        ids = {make_asin(number, count) for number in range(count)}
        assert len(ids) == count
        assert all(re.fullmatch(r"([A-Z][1-9]\d)+", asin) for asin in ids)
        assert max(map(len, ids)) == (3 if count <= 2340 else 6)


def test_a_product_depends_on_seed_and_number_alone():
    assert make_product(5, 200, 1) == list(TwinSource(200, 1).products())[5]
    assert make_product(5, 200, 1) != make_product(5, 200, 2)
    assert TwinSource(200, 1).identity() != TwinSource(201, 1).identity()


def test_products_are_what_a_shop_needs():
    products = list(TwinSource().products())
    assert len(products) == 2000
    for product in products:
        department = DEPARTMENTS[product.category]
        assert product.query in department.types
        assert set(product.attributes) <= set(department.attributes)
        assert set(product.synthetic.attributes) <= set(product.attributes)
        assert all(attribute in " ".join(product.bullets) for attribute in product.attributes)
        assert all(attribute in product.description for attribute in product.attributes)
        assert product.query in product.title.lower()
        assert 1 <= len(product.options) <= 2
        assert all(2 <= len(values) == len(set(values)) for values in product.options.values())
        assert 0 < product.prices[0] < 100
        assert product.synthetic.text.endswith(product.query) or " with " in product.synthetic.text
    assert {product.category for product in products} == set(DEPARTMENTS)
    assert len({product.query for product in products}) == sum(len(d.types) for d in DEPARTMENTS.values()) == 58
    assert 0.05 < sum(len(product.prices) == 2 for product in products) / 2000 < 0.15


def test_every_word_of_pages_and_goals_is_known(twin):
    known, found = words(), set()
    for number in range(len(twin)):
        product = twin.product(number)
        pages = [results_page("", [product], 1, 1, 10, ()), item_page("", product, {})]
        pages += [detail_page("", product, name) for name in ("description", "features", "reviews")]
        found |= set(re.findall(r"[a-z_]+|[0-9]+", " ".join(page.render("text") for page in pages).lower()))
    for number in range(len(twin.goals("synthetic"))):
        found |= set(re.findall(r"[a-z_]+|[0-9]+", make_goal(twin, "synthetic", number, 0).text.lower()))
    shown_by_every_shop = set(
        "instruction sep back to search prev page total results next price rating description features reviews buy "
        "now and lower than dollars with".split()
    )
    assert found - known - shown_by_every_shop == set()
    assert len(known) < 400


def test_a_catalogue_without_room_for_each_type_is_refused():
    with pytest.raises(ConfigError, match="shop_products=57: .*58 types needs 58 or more"):
        TwinSource(57)
