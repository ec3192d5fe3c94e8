"""The catalogue on disk: products, search index and goals in files that every worker maps into its memory.

However many workers open it, the catalogue is in memory once (the operating system's page cache); a worker of its own
holds only the products it has lately shown.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sage_jax.envs.webshop.index import Index, build_index
from sage_jax.envs.webshop.product import Product
from sage_jax.errors import DataError

VERSION = 1
MANIFEST = "manifest.json"
GOAL_KINDS = ("synthetic", "human")
GOAL_SHUFFLE = 233  # the original's seed of the order of goals
SEARCH_DEPTH = 50
_CACHED_PRODUCTS = 2048
_CACHED_SEARCHES = 4096


def ensure_catalogue(identity: Mapping[str, Any], products: Iterable[Product], cache: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a catalogue, building it when the cache has none of this identity.

    The folder appears under its name only when it is complete; two runs that build the same do not disturb each other.

    Args:
      identity: what the products depend on; JSON-serialisable.
      products: read only when the catalogue must be built.
      cache: folder for generated data.

    Raises:
      DataError: there are no products, or the folder cannot be written.
    """
    text = json.dumps({"version": VERSION, **identity}, sort_keys=True)
    target = cache / f"webshop-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    if (target / MANIFEST).is_file():
        return target
    staging = cache / f".{target.name}.{os.getpid()}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _write(staging, products, identity)
        try:
            os.rename(staging, target)
        except OSError as error:
            if not (target / MANIFEST).is_file():  # unless another run was faster
                raise DataError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _write(folder: pathlib.Path, products: Iterable[Product], identity: Mapping[str, Any]) -> None:
    offsets, asins, categories = [0], [], []
    counts: dict[str, list[int]] = {kind: [] for kind in GOAL_KINDS}
    with (folder / "products.jsonl").open("wb") as file:
        for product in products:
            line = product.to_json().encode() + b"\n"
            file.write(line)
            offsets.append(offsets[-1] + len(line))
            asins.append(product.asin.encode())
            categories.append(product.category)
            counts["synthetic"].append(product.variants)
            counts["human"].append(len(product.human))
    if not asins:
        raise DataError("the catalogue has no products")
    order = np.argsort(np.array(asins))
    names = sorted(set(categories))
    arrays = {
        "offsets": np.array(offsets, np.int64),
        "asins": np.array(asins)[order],
        "asin_products": order.astype(np.int32),
        "categories": np.array([names.index(category) for category in categories], np.int16),
    }
    arrays |= {f"goals_{kind}": _goal_table(counts[kind]) for kind in GOAL_KINDS}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    build_index((product.document for product in _read(folder)), folder)
    manifest = {"version": VERSION, "products": len(asins), "categories": names, "identity": dict(identity)}
    manifest["goals"] = {kind: len(arrays[f"goals_{kind}"]) for kind in GOAL_KINDS}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _goal_table(counts: list[int]) -> np.ndarray:
    """Returns [goals, 2]: product and variant of each goal, in the shuffled order in which splits cut them."""
    per_product = np.array(counts, np.int64)
    products = np.repeat(np.arange(len(per_product)), per_product)
    first = np.repeat(np.cumsum(per_product) - per_product, per_product)
    table = np.stack([products, np.arange(len(products)) - first], axis=1).astype(np.int32)
    order = list(range(len(table)))
    random.Random(GOAL_SHUFFLE).shuffle(order)  # the order that the original's list of goals gets
    return table[order]


def _read(folder: pathlib.Path) -> Iterator[Product]:
    with (folder / "products.jsonl").open("rb") as file:
        yield from map(Product.from_json, file)


class Catalogue:
    """An opened catalogue. Products are numbered from 0 in the order of their source."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Opens a folder that `ensure_catalogue` made.

        Raises:
          DataError: the folder is missing, incomplete or of another version.
        """
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            if manifest["version"] != VERSION:
                raise DataError(f"{folder} is a catalogue of version {manifest['version']}, expected {VERSION}")
            self._count: int = manifest["products"]
            self._names: list[str] = manifest["categories"]
            self._offsets, self._asins, self._asin_products, self._categories = (
                np.load(folder / f"{name}.npy", mmap_mode="r")
                for name in ("offsets", "asins", "asin_products", "categories")
            )
            self._goals = {kind: np.load(folder / f"goals_{kind}.npy", mmap_mode="r") for kind in GOAL_KINDS}
            self._text = np.memmap(folder / "products.jsonl", np.uint8, "r")
            self._index = Index(folder, self._count)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is no complete catalogue: {error}") from error
        # Caches of this object's own; a method decorated with lru_cache would keep every catalogue alive.
        self.product = functools.lru_cache(maxsize=_CACHED_PRODUCTS)(self._product)
        self.search = functools.lru_cache(maxsize=_CACHED_SEARCHES)(self._search)

    def __len__(self) -> int:
        return self._count

    def _product(self, number: int) -> Product:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return Product.from_json(self._text[start:end].tobytes())

    def _search(self, keywords: str) -> tuple[int, ...]:
        return self._index.search(keywords, SEARCH_DEPTH)

    def find(self, asin: str) -> int | None:
        """Returns the number of the product with an id, None when there is none."""
        place = int(np.searchsorted(self._asins, asin.encode()))
        found = place < self._count and self._asins[place] == asin.encode()
        return int(self._asin_products[place]) if found else None

    def category(self, number: int) -> str:
        """Returns a product's category without reading the product."""
        return self._names[self._categories[number]]

    def goals(self, kind: str) -> np.ndarray:
        """Returns [goals, 2]: product and variant of each goal of a kind, in shuffled order."""
        return self._goals[kind]
