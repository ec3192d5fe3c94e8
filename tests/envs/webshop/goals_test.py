"""Goals: the same in any two processes, in the original's order, with limits above the price."""

import json
import os
import random
import subprocess
import sys

import pytest

from sage_jax.envs.webshop.goals import NO_LIMIT, combination, make_goal, price_limit, product_price
from sage_jax.errors import DataError

PRINT = """
import json, pathlib, sys
from sage_jax.envs.webshop.catalogue import Catalogue
from sage_jax.envs.webshop.goals import make_goal
catalogue = Catalogue(pathlib.Path(sys.argv[1]))
numbers = range(int(sys.argv[2])) if sys.argv[3] == "up" else reversed(range(int(sys.argv[2])))
goals = {n: make_goal(catalogue, "synthetic", n, 7) for n in numbers}
print(json.dumps([[goals[n].text, goals[n].price_upper, goals[n].asin] for n in sorted(goals)]))
"""


def goals_of_a_process(folder, count, order, hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PRINT, str(folder), str(count), order]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_two_processes_see_the_same_goals(twin_folder, twin):
    count = 200
    first = goals_of_a_process(twin_folder, count, "up", "1")
    assert first == goals_of_a_process(twin_folder, count, "down", "2")
    here = [make_goal(twin, "synthetic", number, 7) for number in range(count)]
    assert first == [[goal.text, goal.price_upper, goal.asin] for goal in here]
    assert len({goal.asin for goal in here}) > 50


def test_the_official_small_set_has_its_goals_in_the_original_order(official):
    assert len(official) == 1000
    assert (len(official.goals("synthetic")), len(official.goals("human"))) == (6910, 13)
    # The original lists goals product by product and shuffles the list with seed 233.
    listed = [
        (number, variant) for number in range(1000) for variant in range(official.product(number).variants)
    ]  # fmt: skip
    random.Random(233).shuffle(listed)
    assert [tuple(map(int, row)) for row in official.goals("synthetic")] == listed


def test_every_combination_of_options_is_a_goal_once(twin):
    seen = {}
    for number in range(len(twin.goals("synthetic"))):
        goal = make_goal(twin, "synthetic", number, 0)
        seen.setdefault(goal.product, []).append(goal.options)
    for number, options in seen.items():
        product = twin.product(number)
        assert len(options) == len(set(options)) == product.variants
        assert all(
            option in product.options[name]
            for chosen in options
            for name, option in zip(sorted(product.options), chosen, strict=True)
        )
    product = next(p for p in map(twin.product, range(len(twin))) if len(p.options) == 2)
    first, second = sorted(product.options)
    assert combination(product, 1) == {first: product.options[first][0], second: product.options[second][1]}


def test_the_instruction_tells_options_and_limit(twin):
    for number in range(100):
        goal = make_goal(twin, "synthetic", number, 0)
        product = twin.product(goal.product)
        assert all(option in goal.text for option in goal.options)
        assert goal.text.endswith(f", and price lower than {goal.price_upper:.2f} dollars")
        assert product_price(product, 0) < goal.price_upper <= product_price(product, 0) + 40


def test_limits_are_multiples_of_ten_next_above_the_price():
    limits = {price_limit(23.0, random.Random(seed)) for seed in range(200)}
    assert limits == {40.0, 50.0, 60.0}  # the larger of two of 30, 40, 50, 60
    assert {price_limit(970.0, random.Random(seed)) for seed in range(20)} == {990.0}
    assert price_limit(980.0, random.Random(0)) == NO_LIMIT
    assert 20.0 not in {price_limit(20.0, random.Random(seed)) for seed in range(50)}


def test_prices_depend_on_seed_and_product_alone(twin):
    ranged = [p for p in map(twin.product, range(len(twin))) if len(p.prices) == 2]
    assert ranged
    for product in ranged:
        low, high = product.prices
        assert low <= product_price(product, 1) <= high
        assert product_price(product, 1) == product_price(product, 1) != product_price(product, 2)
    fixed = next(p for p in map(twin.product, range(len(twin))) if len(p.prices) == 1)
    assert product_price(fixed, 1) == product_price(fixed, 2) == fixed.prices[0]


def test_a_goal_that_is_not_there_is_named(twin):
    count = len(twin.goals("synthetic"))
    with pytest.raises(DataError, match=f"goal {count} of kind 'synthetic': the catalogue has {count}"):
        make_goal(twin, "synthetic", count, 0)
    with pytest.raises(DataError, match="goal 0 of kind 'human': the catalogue has 0"):
        make_goal(twin, "human", 0, 0)
