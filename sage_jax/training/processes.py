"""Runs of several processes: all of them run the same program, and the first one alone meets the world outside.

It plays the episodes, talks to engines and environments and writes the run's folder; what it learns there goes to the
others (`once`), which then do the same updates on their own devices.
"""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from sage_jax.errors import ConfigError
from sage_jax.metrics import MetricsWriter

T = TypeVar("T")


def initialize(text: str) -> None:
    """Makes this process one of a run of several; to be called before jax uses a device.

    Args:
      text: empty for a run of one process, which changes nothing; "auto" on TPU pods, Slurm and Kubernetes, which
        tell each process its place; or address:port of the first process, number of this one, and number of
        processes, as in "10.0.0.1:8476,0,2".

    Raises:
      ConfigError: another form, or nothing tells the place of this process.
    """
    if not text:
        return
    if text == "auto":
        try:
            jax.distributed.initialize()
        except ValueError as error:
            raise ConfigError(f"distributed='auto': {error}; give address:port,number,count instead") from error
        return
    address, _, rest = text.partition(",")
    number, _, count = rest.partition(",")
    if ":" not in address or not number.isdigit() or not count.isdigit() or int(number) >= int(count):
        raise ConfigError(f"distributed={text!r}: the form is auto, or address:port,number,count with number < count")
    jax.distributed.initialize(address, int(count), int(number))


def is_first() -> bool:
    """Tells whether this process is the one that plays and writes."""
    return jax.process_index() == 0


def once(work: Callable[[], T]) -> T:
    """Runs `work` in the first process only and returns its result in all of them.

    Args:
      work: its result, or what it raises, must be picklable.

    Raises:
      Exception: what `work` raised, in every process.
    """
    if jax.process_count() == 1:
        return work()
    value: tuple[bool, Any] = (False, None)
    if is_first():
        try:
            value = True, work()
        except Exception as error:  # the others must hear of it, or they would wait for ever
            value = False, error
    succeeded, result = _from_first(value)
    if not succeeded:
        raise result
    return result


def in_first(work: Callable[[], T]) -> T | None:
    """Runs `work` in the first process only and returns its result there, None in the others; it need not be picklable.

    Raises:
      Exception: what `work` raised, in every process: none waits for one that has gone.
    """
    found: list[T] = []
    once(lambda: found.append(work()))
    return found[0] if found else None


def whole_arrays(tree: Any) -> Any:
    """Returns the arrays as the first process can use them alone: in a run of several, whole and on every host."""
    if jax.process_count() == 1:
        return tree
    return multihost_utils.process_allgather(tree, tiled=True)


class RunWriter:
    """The run's `MetricsWriter`: it is open in the first process, and the others learn its cursor."""

    def __init__(self, folder: pathlib.Path, *, cursor: int = 0, step: int = 0):
        """Opens the files; see `MetricsWriter`."""
        self._own = MetricsWriter(folder, cursor=cursor, step=step) if is_first() else None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line."""
        if self._own is not None:
            self._own.write(step, values)

    def cursor(self) -> int:
        """Returns the size of metrics.jsonl in bytes, all of it on disk; all processes call this together."""
        own = self._own
        return once(lambda: own.cursor() if own is not None else 0)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()


def _from_first(value: Any) -> Any:
    """Gives a value of the first process to all: its length, then its bytes."""
    data = np.frombuffer(pickle.dumps(value), np.uint8) if is_first() else np.zeros(0, np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = data if is_first() else np.zeros(size, np.uint8)
    return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).astype(np.uint8).tobytes())
