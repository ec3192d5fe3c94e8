"""Private copies of fast-downward's shared library, each the state of one live episode.

The library keeps its state in globals, so every live episode needs a copy of its own. The stock loader copies the whole
file, of which 32 of 34 MB are debug sections, and the stock environment never unloads it.
"""

from __future__ import annotations

import functools
import os
import pathlib
import struct

import fast_downward
from fast_downward import interface

_PT_LOAD = 1


class PlannerLibrary:
    """One loaded copy. `library` has the functions that `fast_downward.load_lib` documents."""

    def __init__(self) -> None:
        """Loads a copy."""
        original = interface.DOWNWARD_LIB_PATH
        interface.DOWNWARD_LIB_PATH = _trimmed_library(original)
        try:
            self.library = fast_downward.load_lib()
        finally:
            interface.DOWNWARD_LIB_PATH = original

    def close(self) -> None:
        """Unloads the copy. Closing twice is fine."""
        if self.library is not None:
            fast_downward.close_lib(self.library)
            self.library = None


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
