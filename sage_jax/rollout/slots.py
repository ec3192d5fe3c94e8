"""Which session sits on which KV slot, and what its slot still holds. Plain bookkeeping, no jax."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

Run = TypeVar("Run")


@dataclasses.dataclass
class Slot(Generic[Run]):
    """One KV slot.

    Attributes:
      index: row of the cache.
      session: who sits here, None when free.
      kept: ids whose keys and values the slot holds, from position 0.
      run: the turn in progress, None while the session waits for its environment.
      used: when it was last touched; grows.
    """

    index: int
    session: str | None = None
    kept: tuple[int, ...] = ()
    run: Run | None = None
    used: int = 0

    @property
    def turn(self) -> Run:
        """The turn in progress. Raises ValueError when there is none."""
        if self.run is None:
            raise ValueError(f"slot {self.index} has no turn in progress")
        return self.run


class SlotTable(Generic[Run]):
    """A fixed number of slots; idle sessions leave in least-recently-used order when a newcomer needs room."""

    def __init__(self, count: int):
        self._slots = [Slot[Run](index) for index in range(count)]
        self._by_session: dict[str, Slot[Run]] = {}
        self._clock = itertools.count(1)
        self.evictions = 0

    def __iter__(self) -> Iterator[Slot[Run]]:
        return iter(self._slots)

    def running(self) -> list[Slot[Run]]:
        """Returns the slots with a turn in progress, longest untouched first."""
        return sorted((slot for slot in self._slots if slot.run is not None), key=lambda slot: slot.used)

    def kept_sessions(self) -> int:
        """Returns how many sessions sit on a slot."""
        return len(self._by_session)

    def start(self, session: str, run: Run) -> Slot[Run] | None:
        """Seats a turn: on its session's slot, else on a free one, else on the longest idle one; None when all run."""
        slot = self._by_session.get(session) or self._vacate()
        if slot is None:
            return None
        slot.session, slot.run, slot.used = session, run, next(self._clock)
        self._by_session[session] = slot
        return slot

    def stop(self, slot: Slot[Run], kept: Sequence[int]) -> None:
        """Ends the slot's turn; the session stays with the ids given."""
        slot.run, slot.kept, slot.used = None, tuple(kept), next(self._clock)

    def drop(self, session: str) -> None:
        """Frees an idle session's slot. A session whose turn runs keeps it: its turn is still to be answered."""
        slot = self._by_session.get(session)
        if slot is not None and slot.run is None:
            del self._by_session[session]
            slot.session, slot.kept, slot.used = None, (), 0

    def forget(self) -> None:
        """Marks every slot's contents as worthless; sessions and turns stay."""
        for slot in self._slots:
            slot.kept = ()

    def _vacate(self) -> Slot[Run] | None:
        idle = [slot for slot in self._slots if slot.run is None]
        if not idle:
            return None
        slot = min(idle, key=lambda slot: (slot.session is not None, slot.used))  # free ones first
        if slot.session is not None:
            self.evictions += 1
            self.drop(slot.session)
        return slot


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the longest common beginning."""
    length = min(len(first), len(second))
    if tuple(first[:length]) == tuple(second[:length]):
        return length
    return next(index for index in range(length) if first[index] != second[index])
