"""A product as the shop shows and scores it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Instruction:
    """What a goal about the product asks for, before options of synthetic goals and the price are added.

    Attributes:
      text: the request.
      attributes: wanted, at least one.
      options: wanted option values of an instruction written by a person; synthetic goals take every combination.
    """

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Review:
    """One customer's review."""

    title: str
    score: str
    body: str


@dataclasses.dataclass(frozen=True)
class Product:
    """One product.

    Attributes:
      asin: id, at most 10 characters.
      title: shown in results and on the item page.
      description: shown on the description page.
      bullets: shown on the features page.
      category: department, the family of the product's goals.
      query: the search that found the product when the catalogue was collected, lower case.
      product_category: path of categories, joined by "›".
      prices: none (the shop asks 100 dollars), one, or (lowest, highest), in dollars.
      options: values on offer by option name, lower case.
      attributes: what the reward compares; never shown.
      rating: shown on the item page.
      reviews: shown on the reviews page.
      synthetic: the instruction of the synthetic goals.
      human: instructions written by people.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    prices: tuple[float, ...]
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    synthetic: Instruction | None = None
    human: tuple[Instruction, ...] = ()

    @property
    def price_tag(self) -> str:
        """The price as pages show it."""
        if not self.prices:
            return "$100.0"
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def variants(self) -> int:
        """How many synthetic goals the product gives: one a combination of its options."""
        if self.synthetic is None:
            return 0
        count = 1
        for values in self.options.values():
            count *= len(values)
        return count

    @property
    def document(self) -> str:
        """What the search looks at."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.bullets[:1], options]).lower()

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Product:
        """Reads `to_json`."""
        values: dict[str, Any] = json.loads(text)
        for name in ("bullets", "prices", "attributes"):
            values[name] = tuple(values[name])
        values["options"] = {name: tuple(choices) for name, choices in values["options"].items()}
        values["reviews"] = tuple(Review(**review) for review in values["reviews"])
        if values["synthetic"] is not None:
            values["synthetic"] = _instruction(values["synthetic"])
        values["human"] = tuple(map(_instruction, values["human"]))
        return cls(**values)


def _instruction(values: Mapping[str, Any]) -> Instruction:
    return Instruction(values["text"], tuple(values["attributes"]), tuple(values["options"]))
