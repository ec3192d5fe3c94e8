"""Search: a BM25 index over texts at hand, or a web API that the user configures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import Stemmer

from sage_jax.errors import ConfigError
from sage_jax.tools.base import Tool, ToolFailure, ToolOutcome, ToolSpec

_SNIPPET = 160


@dataclasses.dataclass(frozen=True)
class Document:
    """Something that can be found: where it is, what it is called, and its text."""

    address: str
    title: str
    text: str


class LocalSearch:
    """BM25 (k1 = 0.9, b = 0.4, English stems) over a few documents."""

    def __init__(self, documents: Sequence[Document], *, hits: int = 5):
        """Builds the index."""
        self._documents, self._hits = tuple(documents), hits
        self._stemmer = Stemmer.Stemmer("english")
        # Imported late: bm25s starts jax where it is installed, before a run of several processes can connect them.
        import bm25s

        self._index = bm25s.BM25(k1=0.9, b=0.4)
        if self._documents:
            self._index.index(self._tokens([f"{d.title} {d.text}" for d in self._documents]), show_progress=False)

    def search(self, query: str) -> str:
        """Returns the best hits, one a line. Raises ToolFailure when nothing fits."""
        count = min(self._hits, len(self._documents))
        words = self._tokens([query]) if count else None
        if not count or not any(words.ids):
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"nothing found for {query[:80]!r}")
        found, scores = self._index.retrieve(words, k=count, show_progress=False)
        hits = [self._documents[int(i)] for i, score in zip(found[0], scores[0], strict=True) if score > 0]
        if not hits:
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"nothing found for {query[:80]!r}")
        return "\n".join(f"{hit.title} | {hit.address} | {' '.join(hit.text.split())[:_SNIPPET]}" for hit in hits)

    def _tokens(self, texts: list[str]) -> Any:
        import bm25s

        return bm25s.tokenize(texts, stopwords="en", stemmer=self._stemmer, show_progress=False)


@dataclasses.dataclass(frozen=True)
class WebSearchOptions:
    """A web API that answers GET with JSON. Raises ConfigError naming the field.

    Attributes:
      url: its address.
      query_name: name of the query's parameter.
      key_env: environment variable that holds the key; empty sends none.
      key_header: header that carries it.
      results: keys that lead to the list of hits, joined by dots.
      title, address, text: keys of a hit.
      hits: shown at most.
      timeout_s: longest time of a search.
    """

    url: str
    query_name: str = "q"
    key_env: str = ""
    key_header: str = "Authorization"
    results: str = "results"
    title: str = "title"
    address: str = "url"
    text: str = "description"
    hits: int = 5
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"search_url={self.url!r}: must begin with http:// or https://")
        if self.key_env and not os.environ.get(self.key_env):
            raise ConfigError(f"search_key_env={self.key_env!r}: there is no such environment variable, or it is empty")


class WebSearch:
    """Searches by the configured API."""

    def __init__(self, options: WebSearchOptions):
        """Opens no connection yet."""
        self._options = options
        self._client = httpx.Client(timeout=options.timeout_s, trust_env=False)

    def search(self, query: str) -> str:
        """Returns the hits, one a line. Raises ToolFailure, which never quotes the key."""
        options = self._options
        headers = {options.key_header: os.environ[options.key_env]} if options.key_env else {}
        try:
            response = self._client.get(options.url, params={options.query_name: query}, headers=headers)
            response.raise_for_status()
            found: Any = response.json()
            for key in options.results.split("."):
                found = found[key]
            hits = [self._line(hit) for hit in found[: options.hits]]
        except httpx.TimeoutException:
            raise ToolFailure(ToolOutcome.TIMEOUT, "the search takes too long") from None
        except httpx.HTTPError as error:
            raise ToolFailure(ToolOutcome.UNREACHABLE, f"the search failed: {type(error).__name__}") from None
        except (ValueError, KeyError, TypeError):
            raise ToolFailure(ToolOutcome.UNREACHABLE, "the search answered something unexpected") from None
        if not hits:
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"nothing found for {query[:80]!r}")
        return "\n".join(hits)

    def _line(self, hit: Mapping[str, Any]) -> str:
        options = self._options
        text = " ".join(str(hit.get(options.text) or "").split())[:_SNIPPET]
        return f"{hit.get(options.title) or ''} | {hit[options.address]} | {text}"


def search_tool(search: Callable[[str], str]) -> Tool:
    """Returns `search` for either backend."""
    spec = ToolSpec(
        "search", "Search for pages; each line is title | address | beginning.", {"query": ("string", "a few words")}
    )
    return Tool(spec, lambda query: search(query))
