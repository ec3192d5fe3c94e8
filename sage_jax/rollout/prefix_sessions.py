"""Finds the session that a request continues from its ids alone: the HTTP contract has no word for a session."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


class PrefixSessions:
    """Idle sessions by what they hold; a request continues the longest one whose whole context it begins with.

    Whole, so that a rollout never takes the slot of a sibling that merely shares its prompt.
    """

    def __init__(self, limit: int):
        """Keeps `limit` idle sessions, the latest used: as many as the engine has slots."""
        self._limit = limit
        self._idle: dict[str, tuple[int, ...]] = {}  # oldest first
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._idle)

    def claim(self, ids: Sequence[int]) -> str:
        """Takes out the session that the ids continue, or names a new one."""
        ids = tuple(ids)
        held = [name for name, context in self._idle.items() if ids[: len(context)] == context]
        if not held:
            return f"http-{next(self._numbers)}"
        best = max(held, key=lambda name: len(self._idle[name]))
        del self._idle[best]
        return best

    def release(self, session: str, context: Sequence[int]) -> None:
        """Puts a session back with the context it now has; the one idle the longest is forgotten when there are many.

        The engine lets it go by the same rule.
        """
        self._idle[session] = tuple(context)
        while len(self._idle) > self._limit:
            del self._idle[next(iter(self._idle))]

    def clear(self) -> list[str]:
        """Forgets all idle sessions; returns their names."""
        names = list(self._idle)
        self._idle.clear()
        return names
