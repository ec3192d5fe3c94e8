"""Which catalogue to use: the official one when its data are there, or the generated one."""

from __future__ import annotations

import pathlib

from sage_jax.envs.webshop.catalogue import ensure_catalogue
from sage_jax.envs.webshop.official import VARIABLE, OfficialSource, official_folder
from sage_jax.envs.webshop.twin import TwinSource
from sage_jax.errors import ConfigError


def build_catalogue(source: str, cache: pathlib.Path, *, size: str, products: int, seed: int) -> pathlib.Path:
    """Returns the folder of a catalogue, building it once.

    Args:
      source: "official" (the folder that $WEBSHOP_DATA names), "generated", or "auto": official when it is named.
      cache: folder for built catalogues.
      size: of the official catalogue, "small" or "full".
      products: of the generated one.
      seed: of the generated one.

    Raises:
      ConfigError: the official catalogue is asked for and $WEBSHOP_DATA is not set.
      DataError: an official file is missing or broken.
    """
    named = official_folder()
    if source == "official" and named is None:
        raise ConfigError(f"source='official' with benchmark='webshop': set {VARIABLE} to the data folder")
    if source == "generated" or named is None:
        twin = TwinSource(products, seed)
        return ensure_catalogue(twin.identity(), twin.products(), cache)
    official = OfficialSource(named, size)
    return ensure_catalogue(official.identity(), official.products(), cache)
