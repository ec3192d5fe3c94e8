"""Which of several servers a session asks: its own by hash, or the next one while that one rests after a failure."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence

from sage_jax.errors import EngineError, ServerUnavailableError


@dataclasses.dataclass
class _Rest:
    """A server that failed: nobody asks it before `until`, and then one request at a time."""

    pause: float
    since: float
    until: float
    on_trial: bool = False


class ServerPool:
    """Short memory of servers that failed. To be used inside one event loop."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        rest_s: float = 1.0,
        rest_max_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Holds every server for sound.

        Args:
          urls: the servers.
          rest_s: shortest rest after a failure; doubles with each further one, and lasts at least as long as the
            failed request took, so that a server which hangs costs no more than the time it rests.
          rest_max_s: longest rest.
          clock: monotonic seconds.
        """
        self._urls, self._rest_s, self._rest_max_s, self._clock = tuple(urls), rest_s, rest_max_s, clock
        self._rests: dict[str, _Rest] = {}

    @contextlib.contextmanager
    def ask(self, session: str, asked: list[str]) -> Iterator[str]:
        """Gives the server to ask and notes how it went.

        Args:
          session: sticks to one server while that one is sound.
          asked: servers that this turn asked before; the one that is given is added.
        """
        url = self._choose(session, asked)
        asked.append(url)
        began, rest = self._clock(), self._rests.get(url)
        if rest is not None:
            rest.on_trial = True
        try:
            yield url
        except ServerUnavailableError as error:
            if error.retry_after is None:  # otherwise it is alive, and says itself when to come back
                self.failed(url, began)
            raise
        except EngineError:  # an answer, if no good one
            self.worked(url)
            raise
        else:
            self.worked(url)
        finally:
            if rest is not None:
                rest.on_trial = False

    def failed(self, url: str, began: float) -> None:
        """Lets a server rest. A request that began before its last failure tells nothing new."""
        rest, now = self._rests.get(url), self._clock()
        if rest is not None and began < rest.since:
            return
        pause = max(self._rest_s, now - began, 2 * rest.pause if rest else 0)
        pause = min(pause, self._rest_max_s)
        self._rests[url] = _Rest(pause, now, now + pause)

    def worked(self, url: str) -> None:
        """Holds a server for sound again."""
        self._rests.pop(url, None)

    def is_failing(self, url: str) -> bool:
        """Tells whether the last that was heard of a server is a failure."""
        return url in self._rests

    def now(self) -> float:
        """Returns the time that `failed` compares with."""
        return self._clock()

    def home(self, session: str) -> str:
        """Returns the server of a session while all are sound."""
        return self._ring(session)[0]

    def _ring(self, session: str) -> tuple[str, ...]:
        first = int.from_bytes(hashlib.blake2b(session.encode(), digest_size=8).digest(), "big") % len(self._urls)
        return self._urls[first:] + self._urls[:first]

    def _choose(self, session: str, asked: list[str]) -> str:
        """Takes the first in the session's order that rests not; among those (or if all rest) the least asked."""
        return min(self._ring(session), key=lambda url: (self._rests_now(url), asked.count(url)))

    def _rests_now(self, url: str) -> bool:
        rest = self._rests.get(url)
        return rest is not None and (rest.on_trial or self._clock() < rest.until)
