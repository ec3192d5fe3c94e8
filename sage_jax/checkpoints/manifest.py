"""The manifest that makes a saved step count: sha256 of every file, what the arrays are, whom the step belongs to.

Orbax finds truncated files but keeps no checksum of what it stores, so one flipped bit would come back as a wrong
weight. The manifest is written last and in one atomic step: a step without one was never finished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from sage_jax.errors import CheckpointError

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is known about one saved step.

    Attributes:
      step: the step.
      fingerprint: the configuration values that a run must share to continue from here.
      arrays: path in the pytree -> [shape, dtype].
      files: path inside the step's folder -> sha256.
    """

    step: int
    fingerprint: Mapping[str, Any]
    arrays: Mapping[str, Any]
    files: Mapping[str, str]


def hash_files(folder: pathlib.Path) -> dict[str, str]:
    """Returns {relative path: sha256} of every file below a folder."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                hashes[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def find_damage(folder: pathlib.Path, manifest: Manifest) -> str | None:
    """Returns what is wrong with a step's folder, or None when every file is as it was written."""
    found = hash_files(folder)
    for name, expected in manifest.files.items():
        if name not in found:
            return f"file {name} is missing"
        if found[name] != expected:
            return f"file {name} has changed since it was written (sha256 differs)"
    return None


def write_manifest(path: pathlib.Path, manifest: Manifest) -> None:
    """Writes a manifest atomically and durably."""
    body = {"format": FORMAT, **dataclasses.asdict(manifest)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump({**body, "sha256": _digest(body)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def read_manifest(path: pathlib.Path) -> Manifest:
    """Reads a manifest.

    Raises:
      CheckpointError: the file is missing, damaged or of another format; names the file.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        expected = body.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"manifest {path} cannot be read: {error}") from error
    if _digest(body) != expected:
        raise CheckpointError(f"manifest {path} has changed since it was written (sha256 differs)")
    if body.pop("format") != FORMAT:
        raise CheckpointError(f"manifest {path} is of another format than {FORMAT}")
    return Manifest(**body)


def sync_folder(folder: pathlib.Path) -> None:
    """Makes the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
