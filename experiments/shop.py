"""Opens the shop in a browser: `python -m experiments.shop [--port=3000]`, then visit http://127.0.0.1:3000.

The catalogue is the official one when $WEBSHOP_DATA names its folder, else the generated one.
"""

from __future__ import annotations

import sys

import uvicorn
from absl import app, flags

from sage_jax.benchmarks.webshop import Webshop, WebshopSettings
from sage_jax.data.tasks import SOURCES, cache_folder
from sage_jax.envs.webshop.catalogue import Catalogue
from sage_jax.envs.webshop.serve import ShopSite
from sage_jax.errors import SageError

_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
_PORT = flags.DEFINE_integer("port", 3000, "Port to listen on.")
_SOURCE = flags.DEFINE_enum("source", "auto", SOURCES, "Catalogue: official, generated, or official when it is there.")
_GOALS = flags.DEFINE_enum("goals", "synthetic", ["synthetic", "human"], "Instructions by template or by people.")
_PRODUCTS = flags.DEFINE_integer("products", 2000, "Products of the generated catalogue.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the generated catalogue and of prices.")


def main(argv: list[str]) -> None:
    """Builds the catalogue where needed and serves it."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}")
    try:
        own = WebshopSettings(shop_products=_PRODUCTS.value, shop_seed=_SEED.value, shop_goals=_GOALS.value)
        folder = Webshop(own, source=_SOURCE.value, cache=cache_folder("")).build()
        site = ShopSite(Catalogue(folder), kind=own.shop_goals, seed=own.shop_seed)
    except SageError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    uvicorn.run(site.app(), host=_HOST.value, port=_PORT.value, log_level="warning")


if __name__ == "__main__":
    app.run(main)
