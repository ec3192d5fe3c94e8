"""Where the AppWorld engine is installed: what third_party/appworld/install.sh makes."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import subprocess

from sage_jax.errors import DataError

VARIABLE = "SAGE_JAX_APPWORLD"
INSTALL = "run third_party/appworld/install.sh"


@dataclasses.dataclass(frozen=True)
class Home:
    """An installation.

    Attributes:
      folder: holds `venv/` (the engine) and `twin/` (a data root with our world).
    """

    folder: str

    def __post_init__(self) -> None:
        if not os.path.exists(self.python):
            raise DataError(f"AppWorld is not installed in {self.folder}: {INSTALL} {self.folder}, or set {VARIABLE}")

    @property
    def python(self) -> str:
        """The engine's interpreter."""
        return os.path.join(self.folder, "venv", "bin", "python")

    @property
    def command(self) -> str:
        """The engine's command line."""
        return os.path.join(self.folder, "venv", "bin", "appworld")

    @property
    def twin(self) -> str:
        """The data root of our world."""
        return os.path.join(self.folder, "twin")

    @property
    def readable(self) -> tuple[str, ...]:
        """What the engine needs to see of the host, besides its data."""
        return (os.path.join(self.folder, "venv"), _base_prefix(self.python))


def default_home() -> Home:
    """Returns the installation named by the environment, or the one in the cache.

    Raises:
      DataError: there is none.
    """
    cache = os.environ.get("SAGE_JAX_CACHE") or pathlib.Path.home() / ".cache" / "sage_jax"
    return Home(os.environ.get(VARIABLE) or str(pathlib.Path(cache, "appworld")))


@functools.cache
def _base_prefix(python: str) -> str:
    """Returns the Python installation that a virtual environment stands on."""
    code = "import sys; print(sys.base_prefix)"
    return subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
