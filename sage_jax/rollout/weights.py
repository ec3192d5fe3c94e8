"""Weights on their way to servers: each version a Hugging Face folder, of which the newest few are kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import jax

from sage_jax.errors import ConfigError
from sage_jax.models import ModelConfig, Params, hf

_PREFIX = "version-"


class WeightFolders:
    """Writes a version's folder when called with (params, version), and removes old ones.

    The folder must be on a disk that the servers see too.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        model: ModelConfig,
        *,
        source: str | os.PathLike[str] | None = None,
        keep: int = 2,
    ):
        """Keeps the arguments.

        Args:
          root: folder of the versions; made when missing.
          model: the model.
          source: folder whose tokenizer files and other config keys go along.
          keep: versions that stay on disk, the newest included.

        Raises:
          ConfigError: keep < 1.
        """
        if keep < 1:
            raise ConfigError(f"keep={keep!r}: must be at least 1, for the version in use")
        self._root, self._model, self._source, self._keep = Path(root), model, source, keep

    def __call__(self, params: Params, version: int) -> Path:
        """Writes a version; returns its absolute folder.

        Raises:
          CheckpointError: parameters that do not fit the model.
        """
        folder = self._root / f"{_PREFIX}{version:09d}"
        # float32 keeps server and trainer comparable.
        hf.save(folder, self._model, jax.device_get(params), dtype="float32", source=self._source)
        os.utime(folder)
        self._prune(folder)
        return folder.resolve()

    def _prune(self, newest: Path) -> None:
        """Removes all but the latest written; version numbers need not grow, so that times decide."""
        others = [path for path in self._root.glob(f"{_PREFIX}*") if path != newest]
        others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in others[self._keep - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
