"""A generated catalogue in the form of the original's: five departments, options, attributes, prices, instructions.

Nothing of it is scraped. Its words are few (`words()`), so that a word-level tokenizer can hold them all, and short:
ids are a letter and a number. A product depends on the seed and its number alone.

Some of a product's attributes stand in its title; all stand in its description, which the search reads, and among its
features, which an agent can open.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any

from sage_jax.envs.webshop.product import Instruction, Product, Review
from sage_jax.errors import ConfigError
from sage_jax.seeding import derive_seed

VERSION = 1
OPTIONS = {
    "color": ("black", "white", "red", "blue", "green", "pink", "gray", "navy"),
    "size": ("small", "medium", "large", "wide", "narrow", "tall"),
    "scent": ("lavender", "lemon", "rose", "mint", "vanilla", "coconut"),
    "flavor": ("chocolate", "honey", "cheese", "berry", "garlic", "apple"),
    "pack": ("1 piece", "2 pieces", "4 pieces", "6 pieces"),
}


@dataclasses.dataclass(frozen=True)
class Department:
    """What one department sells."""

    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


DEPARTMENTS = {
    "beauty": Department(
        _list("shampoo, conditioner, lotion, lipstick, perfume, soap, sunscreen, toothpaste, face cream, hair mask"),
        _list(
            "vegan, cruelty free, sulfate free, paraben free, long lasting, tea tree, argan oil, sensitive skin, "
            "natural ingredients, fragrance free, easy carry, alcohol free"
        ),
        ("scent", "size", "pack"),
    ),
    "fashion": Department(
        _list("shirt, jacket, dress, sweater, jeans, shorts, socks, sandals, sneakers, hoodie, skirt, coat"),
        _list(
            "slim fit, machine wash, long sleeve, short sleeve, high waist, pure cotton, soft polyester, rubber sole, "
            "arch support, quick drying, classic fit, hand wash"
        ),
        ("color", "size"),
    ),
    "electronics": Department(
        _list("headphones, speaker, charger, cable, keyboard, mouse, camera, tablet, monitor, tripod, router, radio"),
        _list(
            "wireless, noise cancelling, fast charging, high speed, bluetooth, water resistant, usb port, hands free, "
            "easy install, high definition, light weight, gold plated"
        ),
        ("color", "pack"),
    ),
    "grocery": Department(
        _list("coffee, tea, cookies, chips, granola, pasta, sauce, candy, crackers, nuts, jerky, juice"),
        _list(
            "gluten free, sugar free, low carb, keto friendly, non gmo, dairy free, soy free, plant based, low sodium, "
            "high protein, kosher, fat free"
        ),
        ("flavor", "pack"),
    ),
    "garden": Department(
        _list("lamp, rug, curtain, chair, table, cushion, blanket, mirror, bookcase, planter, bench, clock"),
        _list(
            "solid wood, easy clean, stainless steel, living room, dining room, space saving, easy assemble, "
            "heavy duty, mid century, double sided, non slip, eco friendly"
        ),
        ("color", "size"),
    ),
}
BRANDS = _list(
    "Alvo, Brix, Corda, Delmo, Elvra, Fenno, Gilda, Havn, Ixora, Jutta, Kavi, Lumo, Mirel, Nordo, Orla, Pelo, Quill, "
    "Rivo, Senda, Tavo"
)
OPENERS = ("Find me", "I need", "I want", "Show me", "I am looking for")
_CENTS = (0.0, 0.25, 0.5, 0.75, 0.99)
_VALUES = {"color": (3, 5), "size": (2, 4), "scent": (2, 4), "flavor": (2, 4), "pack": (2, 3)}
_BLOCK = 26 * 90  # ids of one letter and one number from 10 to 99
_STEP = 733  # coprime to every power of _BLOCK: numbers of one type lie apart in the ids


@dataclasses.dataclass(frozen=True)
class TwinSource:
    """A twin catalogue of `count` products, a function of `seed`."""

    count: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError for a catalogue that has no room for each type of product."""
        types = sum(len(department.types) for department in DEPARTMENTS.values())
        if self.count < types:
            raise ConfigError(f"shop_products={self.count}: one of each of the {types} types needs {types} or more")

    def identity(self) -> dict[str, Any]:
        """Returns what the catalogue depends on."""
        return {"twin": {"version": VERSION, **dataclasses.asdict(self)}}

    def products(self) -> Iterator[Product]:
        """Yields the products."""
        return (make_product(number, self.count, self.seed) for number in range(self.count))


def make_asin(number: int, count: int) -> str:
    """Returns the id of a product: one or more blocks of a letter and a number, as many as `count` needs."""
    blocks, room = 1, _BLOCK
    while room < count:
        blocks, room = blocks + 1, room * _BLOCK
    place, text = number * _STEP % room, ""
    for _ in range(blocks):
        place, block = divmod(place, _BLOCK)
        text += f"{chr(ord('A') + block % 26)}{10 + block // 26}"
    return text


def make_product(number: int, count: int, seed: int) -> Product:
    """Returns one product of a catalogue of `count`; departments and types take turns."""
    rng = random.Random(derive_seed(seed, "webshop_twin", number))
    name = list(DEPARTMENTS)[number % len(DEPARTMENTS)]
    department = DEPARTMENTS[name]
    kind = department.types[number // len(DEPARTMENTS) % len(department.types)]
    brand = rng.choice(BRANDS)
    attributes = rng.sample(department.attributes, 4)
    options = {}
    for option in sorted(rng.sample(department.options, rng.choice((1, 2)))):
        low, high = _VALUES[option]
        chosen = set(rng.sample(OPTIONS[option], rng.randint(low, high)))
        options[option] = tuple(value for value in OPTIONS[option] if value in chosen)
    wanted = rng.sample(attributes, rng.choice((1, 2, 2, 3)))
    return Product(
        asin=make_asin(number, count),
        title=f"{brand} {' '.join(attributes[:2])} {kind}".title(),
        description=f"The {kind} from {brand} is {', '.join(attributes)}.",
        bullets=tuple(f"{attribute} {kind}" for attribute in rng.sample(attributes, len(attributes))),
        category=name,
        query=kind,
        product_category=f"{name.title()} › {name.title()} goods › {kind.title()}",
        prices=_prices(rng),
        options=options,
        attributes=tuple(attributes),
        rating=f"{rng.randint(30, 50) / 10}",
        reviews=(Review(rng.choice(("good", "not bad", "best")), str(rng.randint(3, 5)), f"I like the {kind}."),),
        synthetic=Instruction(_instruction(rng, wanted, kind), tuple(wanted)),
    )


def _prices(rng: random.Random) -> tuple[float, ...]:
    low = round(rng.randint(4, 80) + rng.choice(_CENTS), 2)
    return (low, round(low + rng.randint(2, 9), 2)) if rng.random() < 0.1 else (low,)


def _instruction(rng: random.Random, wanted: list[str], kind: str) -> str:
    front, back = (wanted[:-1], wanted[-1]) if len(wanted) > 1 and rng.random() < 0.5 else (wanted, None)
    text = f"{rng.choice(OPENERS)} {', '.join(front)} {kind}"
    return f"{text} with {back}" if back else text


def words() -> set[str]:
    """Returns every word that pages and goals of a catalogue can hold, lower case."""
    texts = [" ".join(BRANDS), " ".join(OPENERS), "goods like the from is not bad best good"]
    for name, department in DEPARTMENTS.items():
        texts += [name, *department.types, *department.attributes]
    texts += [f"{name} {' '.join(values)}" for name, values in OPTIONS.items()]
    texts += [chr(ord("a") + i) for i in range(26)] + [str(i) for i in range(100)] + ["00", "100", "110", "120"]
    return set(re.findall(r"[a-z_]+|[0-9]+", " ".join(texts).lower()))
