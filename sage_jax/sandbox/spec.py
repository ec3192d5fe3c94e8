"""What a sandboxed process may use, and how a program ended: plain data, shared by all backends."""

from __future__ import annotations

import dataclasses
import enum
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from sage_jax.errors import ConfigError

MEGABYTE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a sandboxed process may use up. The host enforces wall time and output, the kernel the rest.

    Attributes:
      wall_s: seconds from the moment the sandbox stands until everything in it is killed; None for a server, which its
        owner ends.
      cpu_s: CPU seconds of each process; None for no limit but `wall_s`.
      memory_mb: address space of each process, in MiB. All of them together stay under `memory_mb * processes`.
      processes: processes and threads alive at once.
      output_kb: KiB that may be written to standard output and standard error together.
      disk_mb: MiB that may be written to the scratch folder.
      open_files: file descriptors of each process.
    """

    wall_s: float | None = 10.0
    cpu_s: int | None = 10
    memory_mb: int = 256
    processes: int = 4
    output_kb: int = 256
    disk_mb: int = 16
    open_files: int = 64

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and value <= 0:
                raise ConfigError(f"sandbox limit {field.name} is {value}, expected a number above 0")


@dataclasses.dataclass(frozen=True)
class Access:
    """What of the host a sandboxed process sees. Everything else is hidden: other files, variables, the network.

    Attributes:
      readable: files and folders to show read-only, besides the system's libraries and the Python installation.
      writable: folders that may be written to, besides the scratch folder that every sandbox has and loses.
      port: a TCP port of the loopback interface on which processes inside may listen and talk to each other; None for
        no network at all. With bubblewrap and docker nothing outside can reach it.
      env: the variables the process gets, besides PATH, HOME and LANG.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    port: int | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (*self.readable, *self.writable):
            if not os.path.isabs(path):
                raise ConfigError(f"sandbox path {path!r} is relative; give an absolute one")
            if not pathlib.Path(path).exists():
                raise ConfigError(f"sandbox path {path!r} does not exist")


class RunStatus(enum.StrEnum):
    """How a sandboxed program ended, as seen from outside."""

    OK = "ok"  # it answered with a JSON value
    ERROR = "error"  # it raised, or its value is no JSON
    TIMEOUT = "timeout"  # wall or CPU time ran out
    MEMORY = "memory"  # it raised MemoryError
    OUTPUT = "output"  # it wrote more than it may
    CRASHED = "crashed"  # it ended without an answer, or with a malformed one


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What came out of a sandboxed program. `value`, `error` and `text` are its own words: data, never to be trusted.

    Attributes:
      status: how it ended.
      value: the JSON value it answered with; None unless `status` is OK.
      error: the end of its traceback, or why there is no answer.
      text: what it printed.
      wall_s: seconds from the moment the sandbox stood until nothing of it was left.
    """

    status: RunStatus
    value: Any = None
    error: str = ""
    text: str = ""
    wall_s: float = 0.0
