"""The benchmarks there are. `RunSettings` has a group of keys of the same name for each."""

from __future__ import annotations

from collections.abc import Callable

from sage_jax.benchmarks.alfworld import Alfworld
from sage_jax.benchmarks.base import Benchmark
from sage_jax.benchmarks.gaia import Gaia
from sage_jax.benchmarks.webshop import Webshop
from sage_jax.benchmarks.webwalker import Webwalker

BENCHMARKS: dict[str, Callable[..., Benchmark]] = {
    "alfworld": Alfworld,
    "gaia": Gaia,
    "webshop": Webshop,
    "webwalker": Webwalker,
}
