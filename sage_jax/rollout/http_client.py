"""Calls to servers that may be slow, full, gone or wrong: deadlines, typed errors, retries within a budget.

`BackgroundLoop` runs the calls on an event loop of its own, so that connections outlive the loops of their callers and
the same client serves coroutines and plain threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import random
import re
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

import httpx
import stamina

from sage_jax.errors import (
    ConfigError,
    EngineError,
    ServerProtocolError,
    ServerRefusedError,
    ServerUnavailableError,
)

_LOG = logging.getLogger(__name__)
_UNREADABLE = (ValueError, RecursionError)  # no JSON, no UTF-8, a number of thousands of digits; nested too deeply
_LONGEST_PAUSE_S = 60.0  # of what a server may ask for by Retry-After


@dataclasses.dataclass(frozen=True)
class HttpOptions:
    """How servers are called. Raises ConfigError naming the field.

    Attributes:
      urls: the servers. Control calls go to each of them.
      router: where generation goes instead; empty sends each session to one of `urls`.
      api_key: sent as a bearer token; empty sends none.
      timeout_s: longest time of one attempt at a turn, first to last byte.
      control_timeout_s: longest time of one control call, a weight update say.
      connect_timeout_s: longest time to get a connection.
      attempts: most attempts at one call.
      retry_s: no pause before another attempt begins later than this after the first attempt began.
      wait_s: pause before the second attempt; doubles, with as much again at random.
      wait_max_s: longest such pause.
      rest_s: shortest time that a server which failed is not asked; doubles.
      rest_max_s: longest such time.
    """

    urls: tuple[str, ...]
    router: str = ""
    api_key: str = dataclasses.field(default="", repr=False)
    timeout_s: float = 240.0
    control_timeout_s: float = 300.0
    connect_timeout_s: float = 5.0
    attempts: int = 100
    retry_s: float = 300.0  # a server may take more than a minute to start
    wait_s: float = 0.2
    wait_max_s: float = 15.0
    rest_s: float = 1.0
    rest_max_s: float = 60.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", tuple(url.rstrip("/") for url in self.urls))
        object.__setattr__(self, "router", self.router.rstrip("/"))
        if not self.urls:
            raise ConfigError("engine_urls is empty: give the address of every server, e.g. http://127.0.0.1:30000")
        for url in (*self.urls, *filter(None, [self.router])):
            check_url("engine url", url, "engine_api_key_env")
        if len(set(self.urls)) != len(self.urls):
            raise ConfigError(f"engine_urls={self.urls!r}: a server is named twice")
        check_key("api_key", self.api_key)


def read_key(setting: str, variable: str) -> str:
    """Returns the key that an environment variable holds, without the white space that files leave around it.

    Raises:
      ConfigError: names the setting and the variable, never the key.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"{setting}={variable!r}: there is no such environment variable, or it is empty")
    check_key(f"{setting}={variable!r}", key)
    return key


def check_key(where: str, key: str) -> None:
    """Raises ConfigError for a key that no HTTP header can carry, without telling the key."""
    if key and not re.fullmatch(r"[!-~]([ -~]*[!-~])?", key):
        raise ConfigError(
            f"{where}: the key has a line break, a character outside ASCII, or white space around it, which no HTTP "
            "header takes; copy it again"
        )


def check_url(setting: str, url: str, key_setting: str) -> None:
    """Raises ConfigError naming the setting for an address that no call can be made to."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{setting}={url!r}: must begin with http:// or https://")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{setting}={url!r}: {error}; write it like http://127.0.0.1:30000") from error
    if parsed.userinfo:  # it would stand in configs, logs and errors
        raise ConfigError(f"{setting} holds a user or password: drop it, and name the key by {key_setting}")
    if not parsed.host or not 0 < (parsed.port or 80) < 65536 or parsed.query or parsed.fragment:
        raise ConfigError(f"{setting}={url!r}: a host, a port up to 65535 and no query are expected")


class HttpClient:
    """JSON over HTTP with typed errors. To be used inside one event loop."""

    def __init__(self, options: HttpOptions):
        """Opens no connection yet."""
        self.options = options
        headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        # trust_env off: a proxy of the environment must not come between a trainer and its servers.
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=options.connect_timeout_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            trust_env=False,
        )

    async def call(
        self, url: str, path: str, body: Mapping[str, Any] | None = None, *, method: str = "POST", timeout_s: float
    ) -> Any:
        """Makes one attempt; returns the parsed JSON, or None for an answer that is empty or a plain text.

        Raises:
          ServerUnavailableError: no connection, no complete answer in time, 429 or 5xx: worth another attempt.
          ServerRefusedError: another 4xx.
          ServerProtocolError: the answer says it is JSON and is not, or not any that can be read.
          EngineError: the request cannot be sent as it is.
        """
        where = f"{method} {url}{path}"
        try:
            # httpx limits the wait for each piece of an answer; a server that trickles is caught by this clock alone.
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(method, url + path, json=body)
        except TimeoutError as error:
            raise ServerUnavailableError(f"{where}: no complete answer within {timeout_s:g} s") from error
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            # Our own fault. Neither its text nor the error goes on: they may quote a header, and so the key.
            raise EngineError(f"{where}: this request cannot be sent ({type(error).__name__})") from None
        except httpx.DecodingError as error:
            raise ServerProtocolError(f"{where}: the answer cannot be decompressed ({error})") from error
        except httpx.TransportError as error:
            raise ServerUnavailableError(f"{where}: {type(error).__name__} {error}".rstrip()) from error
        if response.status_code == 429 or response.status_code >= 500:
            raise ServerUnavailableError(
                f"{where}: {response.status_code} {_message(response)}", _seconds(response.headers.get("Retry-After"))
            )
        if response.status_code != 200:
            raise ServerRefusedError(f"{where}: {response.status_code} {_message(response)}")
        if "json" not in response.headers.get("Content-Type", ""):
            return None
        try:
            return response.json()
        except _UNREADABLE as error:
            raise ServerProtocolError(f"{where}: the answer is no JSON that can be read ({error})") from error

    def attempts(self) -> AsyncIterator[Any]:
        """Returns the attempts at one call: `async for attempt in client.attempts(): with attempt: ...`."""
        options = self.options
        return stamina.retry_context(
            on=_pause_or_give_up,
            attempts=options.attempts,
            timeout=options.retry_s,
            wait_initial=options.wait_s,
            wait_jitter=options.wait_s,
            wait_max=options.wait_max_s,
        ).__aiter__()

    async def control(self, url: str, path: str, body: Mapping[str, Any] | None = None, *, method: str = "POST") -> Any:
        """Makes a control call, with retries: all of them may be made twice."""
        async for attempt in self.attempts():
            with attempt:
                return await self.call(url, path, body, method=method, timeout_s=self.options.control_timeout_s)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self, name: str):
        """Starts the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future:
        """Starts a coroutine there; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Cancels what still runs, runs `last`, and ends the thread."""
        self.submit(self._cancel_all()).result()
        self.submit(last).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _pause_or_give_up(error: Exception) -> bool | float:
    """Tells stamina whether to try again, and after how long when the server said so."""
    if not isinstance(error, ServerUnavailableError):
        return False
    _LOG.warning("failed attempt: %s", error)
    if error.retry_after is None:
        return True
    return min(error.retry_after, _LONGEST_PAUSE_S) * (1 + random.random() / 4)


def _seconds(header: str | None) -> float | None:
    """Reads Retry-After in its form in seconds; the form with a date is left to our own back-off."""
    with contextlib.suppress(ValueError):
        seconds = float(header or "")
        return seconds if 0 <= seconds < float("inf") else None
    return None


def _message(response: httpx.Response) -> str:
    """Finds the server's words: {"error": {"message"}}, {"error"}, {"message"} or the text."""
    try:
        found = response.json()
    except _UNREADABLE:
        found = response.text
    for key in ("error", "message"):
        if isinstance(found, dict):
            found = found.get(key, found)
    return str(found)[:500]
