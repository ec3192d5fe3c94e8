"""Private copies of fast-downward's shared library, each the state of one live episode.

The library keeps its state in globals, so every live episode needs a copy of its own. The stock environment loads a new
one (34 MB, of which 33 are debug sections) each time and never frees it. Unloading is no way out either: all copies
share one registry object (its symbol is STB_GNU_UNIQUE), which keeps pointers into copies that are gone, and the next
load crashes. So copies are never unloaded but lent: a process has as many as it ever had live episodes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import struct
from typing import ClassVar

import fast_downward
from fast_downward import interface

from sage_jax.errors import EnvError

_PT_LOAD = 1


class PlannerLibrary:
    """A copy on loan."""

    _free: ClassVar[list[ctypes.CDLL]] = []

    def __init__(self) -> None:
        """Takes a free copy, or loads one more."""
        self._library: ctypes.CDLL | None = self._free.pop() if self._free else _load_copy()

    @property
    def library(self) -> ctypes.CDLL:
        """The copy, with the functions that `fast_downward.load_lib` documents.

        Raises:
          EnvError: the copy was handed back.
        """
        if self._library is None:
            raise EnvError("the environment is closed; make a new one")
        return self._library

    def close(self) -> None:
        """Hands the copy back. Closing twice is fine."""
        if self._library is not None:
            self._free.append(self._library)
            self._library = None


def _load_copy() -> ctypes.CDLL:
    original = interface.DOWNWARD_LIB_PATH
    interface.DOWNWARD_LIB_PATH = _trimmed_library(original)
    try:
        return fast_downward.load_lib()
    finally:
        interface.DOWNWARD_LIB_PATH = original


@functools.cache
def _trimmed_library(path: str) -> str:
    """Returns a file with only the loadable part of a shared library, held in memory for as long as the process lives.

    Where there is no such thing as a memory file (not Linux), or the file is no 64-bit little-endian ELF, the original.
    """
    data = pathlib.Path(path).read_bytes()
    if not hasattr(os, "memfd_create") or data[:6] != b"\x7fELF\x02\x01":
        return path
    with os.fdopen(os.memfd_create("libdownward"), "wb", closefd=False) as file:
        file.write(trim_elf(data))
        return f"/proc/self/fd/{file.fileno()}"


def trim_elf(data: bytes) -> bytes:
    """Returns a 64-bit little-endian ELF file without what no segment loads (debug information, section headers)."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    end = table + size * count
    for start in range(table, end, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, start)
        if kind == _PT_LOAD:
            end = max(end, offset + length)
    trimmed = bytearray(data[:end])
    struct.pack_into("<Q", trimmed, 40, 0)  # no section header table ...
    struct.pack_into("<HHH", trimmed, 58, 0, 0, 0)  # ... of no entries
    return bytes(trimmed)
