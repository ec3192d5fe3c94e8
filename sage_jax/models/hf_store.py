"""The files of a Hugging Face folder: safetensors found by tensor name, JSON, writes that never leave half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy its bfloat16, which safetensors needs)
import numpy as np
import safetensors

from sage_jax.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_STORED = ("F32", "BF16", "F16")


class TensorFolder:
    """The safetensors of a folder: finds a tensor's file, reads it, names both when something is wrong."""

    def __init__(self, folder: Path):
        self._files: dict[str, Any] = {}
        if (folder / INDEX).is_file():
            self._map = self._read_index(folder)
        elif (folder / SINGLE).is_file():
            self._map = dict.fromkeys(self._open(folder / SINGLE).keys(), folder / SINGLE)
        else:
            raise CheckpointError(f"{folder}: has neither {SINGLE} nor {INDEX}; convert the weights to safetensors")

    def names(self) -> list[str]:
        """Returns every tensor's name."""
        return list(self._map)

    def path(self, name: str) -> Path:
        """Returns the file that holds a tensor."""
        return self._map[name]

    def read(self, name: str, shape: tuple[int, ...], index: tuple[slice, ...] | None = None) -> np.ndarray:
        """Reads one tensor, or a part of it, in its stored dtype after checking that the whole has `shape`."""
        if name not in self._map:
            raise CheckpointError(f"{next(iter(self._map.values())).parent}: tensor {name} is missing")
        path = self._map[name]
        try:
            part = self._open(path).get_slice(name)
            found, dtype = tuple(part.get_shape()), part.get_dtype()
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"{path}: tensor {name}: {error}") from error
        if found != shape:
            raise CheckpointError(f"{path}: tensor {name} has shape {found}; config.json makes it {shape}")
        if dtype not in _STORED:
            raise CheckpointError(f"{path}: tensor {name} has dtype {dtype}; supported: {', '.join(_STORED)}")
        return self._open(path).get_tensor(name) if index is None else part[index]

    def _open(self, path: Path):
        if path not in self._files:
            try:
                self._files[path] = safetensors.safe_open(path, framework="numpy")
            except (OSError, safetensors.SafetensorError) as error:
                raise CheckpointError(f"{path}: cannot be read as safetensors: {error}") from error
        return self._files[path]

    def _read_index(self, folder: Path) -> dict[str, Path]:
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{folder / INDEX}: has no weight_map")
        for name, file in names.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise CheckpointError(f"{folder / INDEX}: {name} points to {file!r}; it must be a file of this folder")
        return {name: folder / file for name, file in names.items()}


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises CheckpointError naming the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: is missing; the folder must hold a Hugging Face model") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, holds {type(values).__name__}")
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object, whole or not at all."""
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Lets `write` make a file under another name, then puts it in place."""
    partial = path.with_name(path.name + ".partial")
    write(partial)
    os.replace(partial, path)


def drop_stale(folder: Path, keep: set[str]) -> None:
    """Removes model files of an earlier save that are no part of this one, and an index that no longer holds."""
    for file in folder.glob("model*.safetensors"):
        if file.name not in keep:
            file.unlink()
    if keep == {SINGLE}:
        (folder / INDEX).unlink(missing_ok=True)
