"""Awaiting many things, some at a time, and giving up those that take far longer than the others."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

SHARE = 0.75  # of a round that must be over before its others can be late


async def map_some(
    function: Callable[[Item], Awaitable[Result]], items: Iterable[Item], *, concurrency: int
) -> list[Result]:
    """Awaits `function` of every item, at most `concurrency` at a time; returns results in the order of the items."""
    gate = asyncio.Semaphore(concurrency)

    async def one(item: Item) -> Result:
        async with gate:
            return await function(item)

    return list(await asyncio.gather(*map(one, items)))


class StragglerError(TimeoutError):
    """It took far longer than the others of its round."""


class Stragglers:
    """Ends what takes far longer than the others: who waits for all waits for the slowest.

    Once three quarters of `count` are over, one that takes longer than `factor` times their median duration is ended,
    at that moment or when it has taken as long. Only those that end without an error count as over. Durations are
    counted from when each begins; parts of different names are measured apart. What is ended is a matter of timing.
    """

    def __init__(self, factor: float, count: int):
        """Measures nothing yet.

        Args:
          factor: of the median; 0 ends nothing.
          count: of all that will begin.
        """
        self._factor, self._enough = factor, math.ceil(SHARE * count)
        self._durations: dict[str, list[float]] = collections.defaultdict(list)
        self._running: dict[str, dict[asyncio.Timeout, float]] = collections.defaultdict(dict)

    @contextlib.asynccontextmanager
    async def limit(self, part: str = "") -> AsyncIterator[None]:
        """Limits the time of what it encloses.

        Raises:
          StragglerError: that took too long, and was cancelled.
        """
        running, begun = self._running[part], asyncio.get_running_loop().time()
        clock = asyncio.timeout(None)
        try:
            async with clock:
                running[clock] = begun
                self._set(part)
                yield
        except TimeoutError as error:
            if not clock.expired():
                raise
            median = statistics.median(self._durations[part])
            reason = f"longer than straggler_factor={self._factor} times the median of {median:.3g} s of the others"
            raise StragglerError(reason) from error
        finally:
            del running[clock]
        self._durations[part].append(asyncio.get_running_loop().time() - begun)
        self._set(part)

    def _set(self, part: str) -> None:
        """Gives all that runs its deadline, once there is one."""
        durations = self._durations[part]
        if not self._factor or len(durations) < self._enough:
            return
        longest = self._factor * statistics.median(durations)
        for clock, begun in self._running[part].items():
            if not clock.expired():
                clock.reschedule(begun + longest)
