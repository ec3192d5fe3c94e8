"""Reads the data folder of princeton-nlp/WebShop: 1,000 products, or all 1.18 million.

The products' file is read one product at a time, because the full one (5 GB) does not fit most memories as Python
objects. Instructions and reviews are small beside it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sage_jax.envs.webshop.product import Instruction, Product, Review
from sage_jax.errors import DataError

VARIABLE = "WEBSHOP_DATA"
PRODUCTS = {"small": "items_shuffle_1000.json", "full": "items_shuffle.json"}
INSTRUCTIONS = {"small": "items_ins_v2_1000.json", "full": "items_ins_v2.json"}
HUMAN = "items_human_ins.json"
REVIEWS = "reviews.json"  # optional: without it every product has no reviews and no rating
SIZES = tuple(PRODUCTS)
NO_ATTRIBUTE = "DUMMY_ATTR"  # what the original compares when a product has no list of attributes
_CHUNK = 1 << 22
_LONGEST_ASIN = 10


@dataclasses.dataclass(frozen=True)
class OfficialSource:
    """The files of a data folder.

    Attributes:
      folder: as princeton-nlp/WebShop's setup.sh fills it.
      size: "small" or "full".
    """

    folder: pathlib.Path
    size: str = "small"

    @property
    def files(self) -> dict[str, pathlib.Path]:
        """Every file that is read, by its role; reviews only when they are there.

        Raises:
          DataError: a file is missing.
        """
        names = {"products": PRODUCTS[self.size], "instructions": INSTRUCTIONS[self.size], "human": HUMAN}
        found = {role: self.folder / name for role, name in names.items()}
        for path in found.values():
            if not path.is_file():
                raise DataError(f"{path} is missing: {VARIABLE} must name the data folder of princeton-nlp/WebShop")
        reviews = self.folder / REVIEWS
        return found | ({"reviews": reviews} if reviews.is_file() else {})

    def identity(self) -> dict[str, Any]:
        """Returns what the catalogue depends on: names, sizes and times of the files."""
        stats = {path.name: path.stat() for path in self.files.values()}
        return {"official": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}}

    def products(self) -> Iterator[Product]:
        """Yields the products in the order of the file; later ones of the same id and broken ids are left out.

        Raises:
          DataError: a file is not what it should be.
        """
        files = self.files
        instructions, human = _read_object(files["instructions"]), _read_object(files["human"])
        reviews = {entry["asin"]: entry for entry in _read_list(files["reviews"])} if "reviews" in files else {}
        seen: set[str] = set()
        for raw in _read_list(files["products"]):
            asin = raw.get("asin", "nan")
            if asin == "nan" or len(asin) > _LONGEST_ASIN or asin in seen:
                continue
            seen.add(asin)
            try:
                yield make_product(raw, instructions.get(asin, {}), human.get(asin, []), reviews.get(asin, {}))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(f"{files['products']}: product {asin} cannot be read: {error!r}") from error


def official_folder() -> pathlib.Path | None:
    """Returns the folder that $WEBSHOP_DATA names, None when it is not set."""
    named = os.environ.get(VARIABLE)
    return pathlib.Path(named).expanduser().absolute() if named else None


def make_product(
    raw: Mapping[str, Any], instruction: Mapping[str, Any], human: list[Mapping[str, Any]], review: Mapping[str, Any]
) -> Product:
    """Returns a product from its entries in the files, cleaned as the original does."""
    bullets = raw["small_description"]
    return Product(
        asin=raw["asin"],
        title=raw["name"],
        description=raw["full_description"] or "",
        bullets=tuple(text or "" for text in (bullets if isinstance(bullets, list) else [bullets])),
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        prices=read_prices(raw.get("pricing")),
        options=_read_options(raw.get("customization_options")),
        attributes=tuple(instruction.get("attributes", [NO_ATTRIBUTE])),
        rating=str(review.get("average_rating", "N.A.")),
        reviews=tuple(
            Review(str(one.get("title", "")), str(one.get("score", one.get("stars", ""))), str(one.get("review", "")))
            for one in review.get("reviews", [])
        ),
        synthetic=_instruction(instruction.get("instruction"), instruction.get("instruction_attributes") or []),
        human=tuple(
            made
            for entry in human
            if (
                made := _instruction(
                    entry["instruction"].strip("."), entry["instruction_attributes"], entry["instruction_options"]
                )
            )
        ),
    )


def read_prices(text: str | None) -> tuple[float, ...]:
    """Reads "$12.99" or "$10.99$15.49" (lowest, highest); none when the text is empty."""
    prices = tuple(float(re.sub(r"[^\d.]", "", part)) for part in (text or "").split("$")[1:])
    return prices[:2]


def _read_options(raw: Mapping[str, Any] | str | None) -> dict[str, tuple[str, ...]]:
    if not raw or isinstance(raw, str):
        return {}
    return {
        name.lower(): tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
        for name, values in raw.items()
        if values is not None
    }


def _instruction(text: str | None, attributes: list[str], options: list[str] | None = None) -> Instruction | None:
    """Returns an instruction; one without attributes makes no goal."""
    return Instruction(text, tuple(attributes), tuple(options or ())) if text and attributes else None


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} holds no JSON object")
    return values


def _read_list(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON list of any length, one at a time.

    Raises:
      DataError: the file is no list of objects, or ends early.
    """
    decode, separator = json.JSONDecoder().raw_decode, re.compile(r"[\s,]*")
    with path.open(encoding="utf-8") as file:
        text = file.read(_CHUNK)
        if not text.lstrip().startswith("["):
            raise DataError(f"{path} holds no JSON list")
        at = text.index("[") + 1
        while True:
            gap = separator.match(text, at)
            at = gap.end() if gap else at
            if text.startswith("]", at):
                return
            try:
                value, at = decode(text, at)
            except json.JSONDecodeError as error:
                more = file.read(_CHUNK)
                if not more:
                    raise DataError(f"{path} ends inside an object or holds no JSON: {error}") from error
                text, at = text[at:] + more, 0
                continue
            if not isinstance(value, dict):
                raise DataError(f"{path} lists {type(value).__name__}, expected objects")
            yield value
