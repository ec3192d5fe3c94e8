"""Awaiting many things, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def gather_some(jobs: Sequence[Awaitable[T]], *, concurrency: int) -> list[T]:
    """Awaits every job, at most `concurrency` at a time; returns the results in the order of the jobs."""
    gate = asyncio.Semaphore(concurrency)

    async def one(job: Awaitable[T]) -> T:
        async with gate:
            return await job

    return list(await asyncio.gather(*map(one, jobs)))
