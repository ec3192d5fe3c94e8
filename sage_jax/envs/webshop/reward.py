"""The score of a purchase (WebShop, arXiv 2207.01206, section 3 and appendix; the released code decides details).

    R = r_type * (attribute hits + option hits + [price <= limit]) / (attributes + options + 1)

A text hits another when their token set ratio, rounded to a whole number, is above 85: that is how the original's
library (thefuzz) compares.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping

from rapidfuzz import fuzz

from sage_jax.envs.webshop.goals import Goal
from sage_jax.envs.webshop.nouns import Tagger
from sage_jax.envs.webshop.product import Product

MATCH = 85
# The first of these that occurs in an option's value stands for it.
COLOURS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel "
    "camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry "
    "cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green "
    "grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot "
    "midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple "
    "rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan "
    "taupe teal tiger turquoise violet walnut wheat white wine yellow"
).split()
_DROPPED = dict.fromkeys(range(128, 256))  # letters with accents, which thefuzz leaves out


@dataclasses.dataclass(frozen=True)
class Score:
    """A purchase's score and what it is made of.

    Attributes:
      value: R, in [0, 1].
      r_type: 1, .5, .1 or 0.
      title_score: share of the goal's title nouns that the purchase's title has.
      attributes, options: hits.
      price: whether the price is within the limit.
    """

    value: float
    r_type: float
    title_score: float
    attributes: int
    options: int
    price: bool


def score_purchase(goal: Goal, product: Product, options: Mapping[str, str], price: float, tagger: Tagger) -> Score:
    """Returns the score of buying `product` with the chosen `options` (value by name) at `price` dollars."""
    r_type, title_score = type_reward(goal, product, tagger)
    attributes, chosen = attribute_hits(goal.attributes, product), option_hits(goal.options, options.values())
    within = price <= goal.price_upper
    total = (attributes + chosen + within) / (len(goal.attributes) + len(goal.options) + 1)
    return Score(r_type * total, r_type, title_score, attributes, chosen, within)


def type_reward(goal: Goal, product: Product, tagger: Tagger) -> tuple[float, float]:
    """Returns (r_type, title score): is this the kind of product that was asked for?"""
    wanted, found = tagger(goal.title), set(tagger(product.title))
    title_score = len(set(wanted) & found) / len(wanted) if wanted else 0.2
    if title_score == 0.0:
        return 0.0, title_score
    if title_score < 0.1:
        return 0.1, title_score
    shared = _parts(goal.product_category) & _parts(product.product_category)
    fits = product.query == goal.query or len(shared) >= 2 or title_score > 0.2
    return (1.0 if fits else 0.5), title_score


def attribute_hits(wanted: Iterable[str], product: Product) -> int:
    """Returns how many wanted attributes the product has in its list, or somewhere in its texts."""
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(matches(has, want) for has in product.attributes) or any(want in text for text in texts) for want in wanted
    )


def option_hits(wanted: Iterable[str], chosen: Iterable[str]) -> int:
    """Returns how many wanted option values were chosen, colours compared by their basic name."""
    plain = [plain_colour(value) for value in chosen]
    return sum(any(matches(value, plain_colour(want)) for value in plain) for want in wanted)


@functools.lru_cache(maxsize=65536)
def plain_colour(value: str) -> str:
    """Returns the first colour of the list that occurs in an option's value, else the value."""
    return next((colour for colour in COLOURS if colour in value), value)


@functools.lru_cache(maxsize=65536)
def matches(first: str, second: str) -> bool:
    """Whether two texts have a token set ratio above 85, after lower case and with signs taken as spaces."""
    first, second = _plain(first), _plain(second)
    return bool(first and second) and round(fuzz.token_set_ratio(first, second)) > MATCH


def _plain(text: str) -> str:
    return re.sub(r"\W", " ", text.translate(_DROPPED)).strip().lower()


@functools.lru_cache(maxsize=8192)
def _parts(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("›"))
