"""Awaiting many things, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def map_some(
    function: Callable[[Item], Awaitable[Result]], items: Iterable[Item], *, concurrency: int
) -> list[Result]:
    """Awaits `function` of every item, at most `concurrency` at a time; returns results in the order of the items."""
    gate = asyncio.Semaphore(concurrency)

    async def one(item: Item) -> Result:
        async with gate:
            return await function(item)

    return list(await asyncio.gather(*map(one, items)))
