"""The benchmarks there are. `RunSettings` has a group of keys for each, of the same name or as `GROUPS` says."""

from __future__ import annotations

from collections.abc import Callable

from sage_jax.benchmarks.alfworld import Alfworld
from sage_jax.benchmarks.appworld import Appworld, AppworldLite
from sage_jax.benchmarks.base import Benchmark
from sage_jax.benchmarks.gaia import Gaia
from sage_jax.benchmarks.webshop import Webshop
from sage_jax.benchmarks.webwalker import Webwalker

BENCHMARKS: dict[str, Callable[..., Benchmark]] = {
    "alfworld": Alfworld,
    "appworld": Appworld,
    "appworld_lite": AppworldLite,
    "gaia": Gaia,
    "webshop": Webshop,
    "webwalker": Webwalker,
}

GROUPS = {"appworld_lite": "appworld"}
