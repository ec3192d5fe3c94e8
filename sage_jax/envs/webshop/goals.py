"""Goals: which product to buy, with which options, below which price. A function of the catalogue, a number and a seed.

The original draws prices from the global generator before anything seeds it, so that each of its processes has goals
of its own. Here a price is drawn from a stream named after the product.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Protocol

import numpy as np

from sage_jax.envs.webshop.product import Product
from sage_jax.errors import DataError
from sage_jax.seeding import derive_seed

DEFAULT_PRICE = 100.0
NO_LIMIT = 1_000_000.0
_LIMITS = tuple(10.0 * i for i in range(1, 100))
_NEAREST = 4


class Wares(Protocol):
    """What goals and visits need of a catalogue."""

    def product(self, number: int, /) -> Product:
        """Returns a product by its number."""

    def search(self, keywords: str, /) -> tuple[int, ...]:
        """Returns the numbers of the products found, best first."""

    def goals(self, kind: str, /) -> np.ndarray:
        """Returns [goals, 2]: product and variant of each goal of a kind."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """What an episode asks for.

    Attributes:
      text: the instruction.
      product: number of the product it was made from, which is one way to reach score 1.
      asin, title, category, query, product_category: of that product.
      attributes: wanted.
      options: wanted option values.
      price_upper: the most the purchase may cost, in dollars.
    """

    text: str
    product: int
    asin: str
    title: str
    category: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


def make_goal(catalogue: Wares, kind: str, number: int, seed: int) -> Goal:
    """Returns goal `number` of a kind, counted in the shuffled order.

    Raises:
      DataError: the catalogue has no such goal.
    """
    table = catalogue.goals(kind)
    if not 0 <= number < len(table):
        raise DataError(f"goal {number} of kind {kind!r}: the catalogue has {len(table)} of them")
    place, variant = (int(value) for value in table[number])
    product = catalogue.product(place)
    if kind == "human":
        instruction, options = product.human[variant], product.human[variant].options
        text, stream = instruction.text, (product.asin, "human", variant)
    else:
        instruction = product.synthetic
        assert instruction is not None  # the table has no goals of products without one
        chosen = combination(product, variant)
        wanted = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
        text, options = instruction.text + (f" with {wanted}" if wanted else ""), tuple(chosen.values())
        stream = (product.asin, "synthetic")
    limit = price_limit(product_price(product, seed), random.Random(derive_seed(seed, "webshop_limit", *stream)))
    if limit < NO_LIMIT:
        text += f", and price lower than {limit:.2f} dollars"
    return Goal(
        text=text,
        product=place,
        asin=product.asin,
        title=product.title,
        category=product.category,
        query=product.query,
        product_category=product.product_category,
        attributes=instruction.attributes,
        options=options,
        price_upper=limit,
    )


def combination(product: Product, variant: int) -> dict[str, str]:
    """Returns the options of a synthetic goal: combination `variant`, names sorted, the last one varying fastest."""
    names = sorted(product.options)
    values = next(itertools.islice(itertools.product(*(product.options[name] for name in names)), variant, None))
    return dict(zip(names, values, strict=True))


def product_price(product: Product, seed: int) -> float:
    """Returns what a product costs, in dollars: its price, one inside its range, or 100 when it has none."""
    if not product.prices:
        return DEFAULT_PRICE
    if len(product.prices) == 1:
        return product.prices[0]
    return random.Random(derive_seed(seed, "webshop_price", product.asin)).uniform(*product.prices)


def price_limit(price: float, rng: random.Random) -> float:
    """Returns the larger of two drawn from the four multiples of 10 next above a price; NO_LIMIT from 980 on."""
    above = [limit for limit in _LIMITS if limit > price][:_NEAREST]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT
