"""Pages over HTTP within limits: robots.txt, domain, size, redirects, time. Every failure is a `ToolFailure`."""

from __future__ import annotations

import collections
import dataclasses
import ipaddress
import socket
import time
import urllib.parse

import httpx
import protego

from sage_jax.errors import ConfigError
from sage_jax.tools.base import ToolFailure, ToolOutcome
from sage_jax.tools.pages import Page, read_page, under_root

_TEXT = ("text/html", "application/xhtml+xml", "text/plain", "application/xml", "text/xml")
_ROBOTS_BYTES = 512 * 1024


@dataclasses.dataclass(frozen=True)
class FetchOptions:
    """Limits of one client. Raises ConfigError naming the field.

    Attributes:
      max_bytes: largest page, counted after decompression.
      max_redirects: followed one by one, each of them checked like a first request.
      timeout_s: longest time of a page, redirects included.
      connect_timeout_s: longest time to get a connection.
      user_agent: sent, and looked up in robots.txt.
      robots: whether robots.txt is obeyed.
      cached_pages: pages kept, so that going back costs nothing.
    """

    max_bytes: int = 2 * 1024 * 1024
    max_redirects: int = 5
    timeout_s: float = 20.0
    connect_timeout_s: float = 5.0
    user_agent: str = "sage-jax-research"
    robots: bool = True
    cached_pages: int = 256

    def __post_init__(self) -> None:
        for name in ("max_bytes", "timeout_s", "connect_timeout_s", "cached_pages"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"fetch.{name}={getattr(self, name)} must be above 0")
        if self.max_redirects < 0:
            raise ConfigError(f"fetch.max_redirects={self.max_redirects} must be 0 or more")


class PageClient:
    """Fetches pages under one root at a time."""

    def __init__(self, options: FetchOptions | None = None):
        """Opens no connection yet."""
        self.options = options or FetchOptions()
        timeout = httpx.Timeout(self.options.timeout_s, connect=self.options.connect_timeout_s)
        # trust_env off: a proxy or a netrc entry of this machine must not leak to the sites that are visited.
        self._client = httpx.Client(
            timeout=timeout, headers={"User-Agent": self.options.user_agent}, trust_env=False, follow_redirects=False
        )
        self._pages: collections.OrderedDict[tuple[str, str | None], Page] = collections.OrderedDict()
        self._robots: dict[str, protego.Protego | None] = {}

    def page(self, url: str, root: str | None) -> Page:
        """Returns a page under `root`, or with None any page of the public internet.

        Raises:
          ToolFailure: the address lies outside `root` or is not public, or any other failure, typed.
        """
        key = (url, root)
        if key not in self._pages:
            deadline = time.monotonic() + self.options.timeout_s
            final, body = self._follow(url, root, deadline)
            self._pages[key] = read_page(body, final, root)
            while len(self._pages) > self.options.cached_pages:
                self._pages.popitem(last=False)
        self._pages.move_to_end(key)
        return self._pages[key]

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _follow(self, url: str, root: str | None, deadline: float) -> tuple[str, bytes]:
        seen = []
        while True:
            if not under_root(url, root):
                raise ToolFailure(ToolOutcome.REFUSED, f"{_short(url)} is outside {root or 'the web'}")
            if root is None:
                _check_public(url)
            if url in seen or len(seen) > self.options.max_redirects:
                raise ToolFailure(ToolOutcome.REDIRECTS, f"{_short(seen[0])} redirects {len(seen)} times and more")
            seen.append(url)
            if self.options.robots and not self._allowed(url, deadline):
                raise ToolFailure(ToolOutcome.REFUSED, f"robots.txt of the site forbids {_short(url)}")
            status, headers, body = self._get(url, self.options.max_bytes, deadline)
            if 300 <= status < 400 and headers.get("location"):
                url = urllib.parse.urldefrag(urllib.parse.urljoin(url, headers["location"])).url
                continue
            kind = headers.get("content-type", "text/html").partition(";")[0].strip().lower()
            if status in (404, 410):
                raise ToolFailure(ToolOutcome.NOT_FOUND, f"{_short(url)} does not exist (HTTP {status})")
            if status in (401, 403, 451):
                raise ToolFailure(ToolOutcome.REFUSED, f"{_short(url)} is refused (HTTP {status})")
            if status >= 400:
                raise ToolFailure(ToolOutcome.UNREACHABLE, f"{_short(url)} failed (HTTP {status})")
            if kind not in _TEXT:
                raise ToolFailure(ToolOutcome.UNREADABLE, f"{_short(url)} is {kind}, not a page")
            return url, body

    def _get(self, url: str, max_bytes: int, deadline: float) -> tuple[int, httpx.Headers, bytes]:
        """Reads one answer, at most `max_bytes` of it; the clock of the whole page goes on while it trickles."""
        try:
            with self._client.stream("GET", url) as response:
                body = bytearray()
                if response.status_code < 300:
                    for chunk in response.iter_bytes():
                        body += chunk
                        if len(body) > max_bytes:
                            raise ToolFailure(
                                ToolOutcome.TOO_LARGE, f"{_short(url)} is larger than {max_bytes // 1024} KiB"
                            )
                        if time.monotonic() > deadline:
                            raise ToolFailure(ToolOutcome.TIMEOUT, f"{_short(url)} takes too long")
                return response.status_code, response.headers, bytes(body)
        except httpx.TimeoutException as error:
            raise ToolFailure(ToolOutcome.TIMEOUT, f"{_short(url)} takes too long") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ToolFailure(
                ToolOutcome.UNREACHABLE, f"{_short(url)} cannot be read: {type(error).__name__}"
            ) from error

    def _allowed(self, url: str, deadline: float) -> bool:
        """Whether the site's robots.txt lets us in. No such file, or one that cannot be read, forbids nothing."""
        parts = urllib.parse.urlsplit(url)
        site = f"{parts.scheme}://{parts.netloc}"
        if site not in self._robots:
            try:
                status, _, body = self._get(f"{site}/robots.txt", _ROBOTS_BYTES, deadline)
            except ToolFailure:
                status, body = 0, b""
            text = body.decode("utf-8", "replace") if status == 200 else ""
            self._robots[site] = protego.Protego.parse(text) if text else None
        rules = self._robots[site]
        return rules is None or rules.can_fetch(url, self.options.user_agent)


def _check_public(url: str) -> None:
    """Refuses hosts of private networks: an agent must not reach what only this machine can.

    A name that resolves to another address a moment later would slip through; whoever lets agents loose on the web
    should close private networks to this process as well.
    """
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise ToolFailure(ToolOutcome.UNREACHABLE, f"{_short(url)}: there is no such host") from error
    if not all(ipaddress.ip_address(address.partition("%")[0]).is_global for address in addresses):
        raise ToolFailure(ToolOutcome.REFUSED, f"{_short(url)} is not on the public internet")


def _short(url: str) -> str:
    return url if len(url) <= 120 else url[:120] + "..."
