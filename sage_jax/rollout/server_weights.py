"""The newest weights on every server: given under a name of this trainer's own, checked, and given again where missing.

A server that cannot be reached is left out while another one has the weights; it gets them before a turn of its counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sage_jax.errors import (
    EngineError,
    ServerProtocolError,
    ServerUnavailableError,
    StaleWeightsError,
)
from sage_jax.rollout.http_client import HttpClient
from sage_jax.rollout.http_types import Answer
from sage_jax.rollout.server_pool import ServerPool
from sage_jax.rollout.weight_transfer import Call, Transfer

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"(?:([0-9a-f]{8})-)?([0-9]+)")  # "<trainer>-<version>"; a bare number is someone else's habit
LOOK_AGAIN_S = 5.0  # clients that adopted their weights wait up to this long before they mend a server
_QUICK_S = 20.0  # for calls that a sound server answers at once


class Published(NamedTuple):
    """Weights that were pushed: the folder that servers load, the version, and the trainer in its name."""

    folder: Path
    version: int
    trainer: str


class ServerWeights:
    """Gives weights to servers and knows who should have which. To be used inside one event loop.

    Attributes:
      version: given last; None until then, and then any weights will do.
      pushed_again: servers that got the weights again since they had lost them.
    """

    def __init__(self, client: HttpClient, urls: Sequence[str], pool: ServerPool, transfer: Transfer):
        """Gives nothing yet; `transfer` hands a folder over."""
        self._client, self._urls, self._pool, self._transfer = client, tuple(urls), pool, transfer
        # Versions are small numbers that every trainer counts alike: the token tells ours from another's.
        self._trainer = secrets.token_hex(4)
        self._adopted = False  # from another client of the same run, which is one of several then
        self.version: int | None = None
        self.pushed_again = 0
        self._folder: Path | None = None
        self._holders: set[str] = set()  # servers that confirmed the version
        self._left_out: set[str] = set()
        self._mending = {url: asyncio.Lock() for url in self._urls}

    def name(self, version: int | None = None) -> str:
        """Returns the name under which servers know a version, the newest by default."""
        return f"{self._trainer}-{self.version if version is None else version}"

    @property
    def published(self) -> Published | None:
        """The newest weights, for another client of the same servers."""
        if self._folder is None or self.version is None:
            return None
        return Published(self._folder, self.version, self._trainer)

    async def adopt(self, published: Published) -> None:
        """Makes another client's weights the newest; servers are asked for theirs before their next turn."""
        self._folder, self.version, self._trainer = published
        self._holders, self._left_out, self._adopted = set(), set(), True

    def are_stale(self, answer: Answer) -> bool:
        """Tells whether a turn was sampled, in whole or in part, by other weights than the newest."""
        versions = {answer.weight_version, *(span.version for span in answer.spans)}
        return self.version is not None and versions != {self.name()}

    async def push_everywhere(self, folder: Path, version: int) -> None:
        """Has every server load a version; those that cannot be reached are left out.

        Raises:
          ServerUnavailableError: no server could be reached.
          ServerRefusedError, ServerProtocolError, StaleWeightsError: a server could not take them.
        """
        # One that failed lately is asked once first: a server that stays away must not delay every update.
        urls = await self._answering(self._pool.is_failing)
        errors = await self._settle(urls, [self._push(url, folder, version, self._client.control) for url in urls])
        self._folder, self.version = folder, version
        self._holders = set(urls) - set(errors)
        for url in self._urls:
            if url not in self._holders | self._left_out:
                reason = errors.get(url, "it does not answer")
                _LOG.warning("%s is left out until it can be reached and has weights %s: %s", url, self.name(), reason)
        self._left_out = set(self._urls) - self._holders

    async def prepare(self, url: str) -> None:
        """Gives the newest weights to a server that was left out. Raises what `mend` raises."""
        if self.version is not None and url not in self._holders:
            await self.mend(url)

    async def mend(self, url: str | None) -> None:
        """Gives the newest weights to the server of a stale answer, or to all that can be reached if it is not known.

        Makes one attempt: whoever needs the server tries again, or another one.

        Raises:
          StaleWeightsError: another trainer updates that server.
          ServerUnavailableError, ServerRefusedError, ServerProtocolError: it could not take them.
        """
        if self._folder is None or self.version is None:
            return
        urls = [url] if url else await self._answering(lambda url: True)
        await self._settle(urls, [self._mend(url) for url in urls])

    async def _mend(self, url: str) -> None:
        async with self._mending[url]:  # of many turns that notice, one mends
            found = await self._served(url, self._quickly)
            if found != self.name() and self._adopted:
                # Every client of the run notices: most of them find it mended when they look again.
                await asyncio.sleep(random.uniform(0, LOOK_AGAIN_S))
                found = await self._served(url, self._quickly)
            folder, version = self._folder, self.version  # now: newer ones may have come while this waited
            if folder is not None and version is not None and found != self.name(version):
                other = self._other_trainer(found)
                if other and url in self._holders:  # it had ours, so this came later
                    raise StaleWeightsError(
                        f"{url}: has weights {found!r}: another trainer, {other}, updates this server too (this one is "
                        f"{self._trainer}); give each run servers of its own"
                    )
                self._holders.discard(url)
                await self._push(url, folder, version, self._once)
                self.pushed_again += 1
            self._holders.add(url)
            if url in self._left_out:
                self._left_out.discard(url)
                _LOG.warning("%s has weights %s and is used again", url, self.name())

    async def _push(self, url: str, folder: Path, version: int, call: Call) -> None:
        try:
            # "abort": what still runs there belongs to no one who waits.
            await call(url, "/pause_generation", {"mode": "abort"})
            await self._transfer(call, url, folder, self.name(version))
            found = await self._served(url, call)
            if found != self.name(version):
                raise StaleWeightsError(
                    f"{url}: says weight_version {found!r} after an update to {self.name(version)!r}"
                )
        except BaseException:  # cancelling too: nobody else would let it go on
            with contextlib.suppress(EngineError):  # the first error is the one to tell
                await self._quickly(url, "/continue_generation", {})
            raise
        await call(url, "/continue_generation", {})

    async def _served(self, url: str, call: Call) -> str:
        info = await call(url, "/model_info", method="GET")
        if not isinstance(info, dict) or not isinstance(info.get("weight_version"), str):
            raise ServerProtocolError(f"{url}/model_info: no weight_version in {str(info)[:200]}")
        return info["weight_version"]

    async def _once(self, url: str, path: str, body: Mapping[str, Any] | None = None, *, method: str = "POST") -> Any:
        return await self._client.call(url, path, body, method=method, timeout_s=self._client.options.control_timeout_s)

    async def _quickly(
        self, url: str, path: str, body: Mapping[str, Any] | None = None, *, method: str = "POST"
    ) -> Any:
        timeout = min(_QUICK_S, self._client.options.control_timeout_s)
        return await self._client.call(url, path, body, method=method, timeout_s=timeout)

    async def _answering(self, is_suspect: Callable[[str], bool]) -> list[str]:
        """Returns the servers without suspects that do not answer now; all of them if none would be left."""

        async def answers(url: str) -> bool:
            try:
                await self._quickly(url, "/model_info", method="GET")
            except ServerUnavailableError:
                return False
            return True

        suspects = [url for url in self._urls if is_suspect(url)]
        sound = dict(zip(suspects, await asyncio.gather(*map(answers, suspects)), strict=True))
        return [url for url in self._urls if sound.get(url, True)] or list(self._urls)

    async def _settle(
        self, urls: Sequence[str], calls: Iterable[Coroutine[Any, Any, None]]
    ) -> dict[str, BaseException]:
        """Waits for one call a server; returns the errors of those that could not be reached, if any could."""
        began = self._pool.now()
        results = dict(zip(urls, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        errors = {url: error for url, error in results.items() if error is not None}
        for url, error in errors.items():
            if not isinstance(error, ServerUnavailableError):
                raise error
            self._pool.failed(url, began)
        if len(errors) == len(urls):
            raise next(iter(errors.values()))
        for url in set(urls) - set(errors):
            self._pool.worked(url)
        return errors

    def _other_trainer(self, name: str) -> str | None:
        match = _NAME.fullmatch(name)
        token = match[1] if match else None
        return token if token != self._trainer else None


def version_number(name: str) -> int:
    """Reads the number in a version's name; weights that no trainer named are our 0."""
    match = _NAME.fullmatch(name)
    return int(match[2]) if match else 0
