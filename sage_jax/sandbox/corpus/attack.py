"""One hostile program and what may become of it."""

from __future__ import annotations

import dataclasses
import textwrap

from sage_jax.sandbox.spec import RunStatus

OK, ERROR, TIMEOUT = RunStatus.OK, RunStatus.ERROR, RunStatus.TIMEOUT
MEMORY, OUTPUT, CRASHED = RunStatus.MEMORY, RunStatus.OUTPUT, RunStatus.CRASHED

SHORT_S = 3.0  # for programs that only a deadline ends
LONG_S = 20.0


@dataclasses.dataclass(frozen=True)
class Attack:
    """A hostile program. Its `input` holds what it is after, see `judge.Target`.

    Attributes:
      name: unique.
      code: Python source.
      statuses: how it may end. A program that is refused may notice (ERROR) or not (OK).
      wall_s: its time limit.
    """

    name: str
    code: str
    statuses: frozenset[RunStatus]
    wall_s: float = LONG_S


def attack(name: str, code: str, *statuses: RunStatus) -> Attack:
    """Returns an attack; one that may time out gets a short time."""
    wall_s = SHORT_S if TIMEOUT in statuses else LONG_S
    return Attack(name, textwrap.dedent(code).strip("\n"), frozenset(statuses), wall_s)
