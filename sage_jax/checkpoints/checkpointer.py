"""Saves and restores everything a run needs to continue, as one unit that is whole or does not count.

    checkpoints/steps/<step>/arrays      parameters, optimizer state (orbax)
    checkpoints/steps/<step>/document    seeds, task cursor, bank log, metrics cursor, ... (JSON)
    checkpoints/manifests/<step>.json    hashes of all of it; written last

A killed save leaves no manifest and is cleaned up on the next start. A damaged step is reported and the one before it
is used. In a run of several processes all of them make the same calls, on a folder that all of them see; each writes
its own pieces of the arrays, and the first one all the rest.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from sage_jax.checkpoints.manifest import Manifest, find_damage, hash_files, read_manifest, write_manifest
from sage_jax.errors import CheckpointError


class CheckpointWarning(UserWarning):
    """A damaged step was passed over."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """One restored step.

    Attributes:
      step: the step.
      arrays: the pytree that was saved, bit for bit.
      document: the JSON part that was saved.
      passed_over: (step, what is wrong) of newer steps that are damaged.
    """

    step: int
    arrays: Any
    document: dict[str, Any]
    passed_over: tuple[tuple[int, str], ...] = ()


class Checkpointer:
    """The checkpoints of one run."""

    def __init__(
        self,
        folder: str | pathlib.Path,
        *,
        keep: int = 2,
        keep_every: int | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ):
        """Opens the folder, and removes what killed saves left in it.

        Args:
          folder: made when missing.
          keep: how many of the newest steps to keep.
          keep_every: also keep every step divisible by this.
          fingerprint: configuration values (`config.fingerprint(settings)`) that a checkpoint must share with this run.
          defaults: what checkpoints had for keys that they lack, since the keys are newer (`config.defaults`).

        Raises:
          CheckpointError: `keep` is not positive.
        """
        if keep < 1:
            raise CheckpointError(f"keep={keep} would keep no checkpoint; 1 or more would fit")
        folder = pathlib.Path(folder).absolute()
        self._steps, self._manifests = folder / "steps", folder / "manifests"
        self._keep, self._keep_every = keep, keep_every
        self._fingerprint = plain_json(fingerprint or {}, "fingerprint")
        self._defaults = plain_json(defaults or {}, "defaults")
        if _first():
            self._manifests.mkdir(parents=True, exist_ok=True)
            self._steps.mkdir(parents=True, exist_ok=True)
            self._clean()
        _meet("checkpoints opened")
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, save_root_metadata=False)
        self._orbax = ocp.CheckpointManager(self._steps, options=options, item_names=("arrays", "document"))

    def save(self, step: int, arrays: Any, document: Mapping[str, Any]) -> None:
        """Saves one step; it counts once this returns, and a kill at any moment before leaves the earlier ones.

        Args:
          step: at least 0; a step that exists already is replaced.
          arrays: pytree of jax or NumPy arrays.
          document: JSON values with string keys.

        Raises:
          CheckpointError: the document is not JSON, names the place; or the step could not be written.
        """
        document = plain_json(document, "document")
        self._delete(step)
        saved = self._orbax.save(
            step,
            args=ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), document=ocp.args.JsonSave(document)),
            force=True,
        )
        if not saved:
            raise CheckpointError(f"orbax did not save step {step} in {self._steps}")
        self._orbax.wait_until_finished()
        _meet("checkpoint written")
        if _first():
            files = hash_files(self._steps / str(step))
            manifest = Manifest(step, self._fingerprint, describe_arrays(arrays), files)
            write_manifest(self._manifests / f"{step}.json", manifest)
        _meet("checkpoint counts")
        self._prune()

    def restore(self, template: Any = None, *, step: int | None = None) -> Restored:
        """Restores the newest step that is whole.

        Args:
          template: pytree like the one saved (arrays or ShapeDtypeStructs; their sharding is honoured). None gives
            nested dicts and lists as saved.
          step: this step and no other.

        Raises:
          CheckpointError: no step is left that is whole; or the newest whole one belongs to another configuration
            (names the keys that differ) or has other arrays than the template (names them).
        """
        candidates = list(reversed(self.steps())) if step is None else [step]
        passed_over: list[tuple[int, str]] = []
        for candidate in candidates:
            try:
                manifest = self._verified(candidate)
            except CheckpointError as error:
                passed_over.append((candidate, str(error)))
                if step is None:
                    warnings.warn(f"checkpoint {candidate} is damaged: {error}", CheckpointWarning, stacklevel=2)
                continue
            self._check_fingerprint(manifest)
            if template is not None:
                _check_arrays(manifest, describe_arrays(template))
            return self._read(candidate, template, tuple(passed_over))
        reasons = "; ".join(f"step {number}: {reason}" for number, reason in passed_over) or "it is empty"
        raise CheckpointError(f"no usable checkpoint in {self._steps.parent}: {reasons}")

    def check_fingerprint(self) -> None:
        """Raises CheckpointError when the newest readable step belongs to another configuration; reads no arrays."""
        for step in reversed(self.steps()):
            try:
                manifest = read_manifest(self._manifests / f"{step}.json")
            except CheckpointError:
                continue  # `restore` passes over it and tells of it
            self._check_fingerprint(manifest)
            return

    def latest(self) -> int | None:
        """Returns the newest finished step, or None. Its files are not checked here."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Returns the finished steps, oldest first."""
        return sorted(int(path.stem) for path in self._manifests.glob("*.json") if path.stem.isdigit())

    def close(self) -> None:
        """Releases orbax' threads."""
        self._orbax.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _verified(self, step: int) -> Manifest:
        manifest = read_manifest(self._manifests / f"{step}.json")
        damage = find_damage(self._steps / str(step), manifest)
        if damage is not None:
            raise CheckpointError(damage)
        return manifest

    def _check_fingerprint(self, manifest: Manifest) -> None:
        own = self._fingerprint
        saved = {key: self._defaults[key] for key in own if key in self._defaults} | dict(manifest.fingerprint)
        differing = [key for key in sorted({*saved, *own}) if saved.get(key) != own.get(key)]
        if differing:
            shown = ", ".join(f"{key} was {saved.get(key)!r} and is {own.get(key)!r}" for key in differing)
            raise CheckpointError(
                f"checkpoint {manifest.step} in {self._steps.parent} belongs to another configuration: {shown}. "
                "Set these keys back, or give the run another folder"
            )

    def _read(self, step: int, template: Any, passed_over: tuple[tuple[int, str], ...]) -> Restored:
        abstract = None if template is None else jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        restored = self._orbax.restore(
            step,
            args=ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract), document=ocp.args.JsonRestore()),
        )
        return Restored(step, restored["arrays"], restored["document"], passed_over)

    def _prune(self) -> None:
        steps = self.steps()
        _meet("checkpoints listed")  # before one of them is gone
        for step in steps[: -self._keep]:
            if not (self._keep_every and step % self._keep_every == 0):
                self._delete(step)

    def _delete(self, step: int) -> None:
        # The manifest goes first: a kill between the two leaves an unfinished step, not a damaged one.
        if _first():
            (self._manifests / f"{step}.json").unlink(missing_ok=True)
        if step in self._orbax.all_steps():
            self._orbax.delete(step)
        if _first():
            shutil.rmtree(self._steps / str(step), ignore_errors=True)
        _meet("checkpoint deleted")

    def _clean(self) -> None:
        finished = {str(step) for step in self.steps()}
        for path in self._steps.iterdir():
            if path.name not in finished:
                shutil.rmtree(path)
        for path in self._manifests.glob("*.part"):
            path.unlink()


def _first() -> bool:
    """Tells whether this is the process that writes."""
    return jax.process_index() == 0


def _meet(place: str) -> None:
    """Waits for the other processes of the run, if there are any."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)


def describe_arrays(tree: Any) -> dict[str, Any]:
    """Returns {path: [shape, dtype]} of a pytree's leaves."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    described = {}
    for path, leaf in leaves:
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        described[jax.tree_util.keystr(path)] = [list(array.shape), str(array.dtype)]
    return described


def plain_json(value: Any, where: str) -> Any:
    """Returns a value as JSON would give it back (tuples as lists).

    Raises:
      CheckpointError: something in it is not JSON, or a key is no string; names the place.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}: JSON keys are strings")
        return {key: plain_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return json.loads(json.dumps(value))
    raise CheckpointError(f"{where} is a {type(value).__name__}, which JSON cannot hold: convert it first")


def _check_arrays(manifest: Manifest, wanted: Mapping[str, Any]) -> None:
    saved = manifest.arrays
    differing = [key for key in sorted({*saved, *wanted}) if saved.get(key) != wanted.get(key)]
    if differing:
        shown = "; ".join(f"{key} is {saved.get(key)} saved and {wanted.get(key)} wanted" for key in differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise CheckpointError(f"checkpoint {manifest.step} holds other arrays: {shown}{more}")
