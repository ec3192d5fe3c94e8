"""BM25 search over the catalogue: built once by bm25s, then read by every worker from the same memory-mapped arrays.

Querying here needs neither bm25s nor its vocabulary in memory: terms are looked up by bisection, scores are bm25s's own
precomputed ones. Ties go to the product that comes first, as in Lucene.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from sage_jax.envs.webshop.analyser import MAX_BYTES, words

K1, B = 0.9, 0.4  # pyserini's defaults, with which the original's index is searched
_NAMES = ("terms", "starts", "documents", "scores")


def build_index(documents: Iterable[str], folder: pathlib.Path) -> None:
    """Writes the index of documents, numbered from 0, to a folder."""
    with _without_jax():
        import bm25s
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells of each index at a level that shows everywhere
    vocabulary: dict[bytes, int] = {}
    corpus = [
        np.array([vocabulary.setdefault(word, len(vocabulary)) for word in words(document)], np.int32)
        for document in documents
    ]
    model = bm25s.BM25(method="lucene", k1=K1, b=B)
    model.index((corpus, vocabulary), create_empty_token=False, show_progress=False)
    terms = np.array(list(vocabulary), f"S{MAX_BYTES}")
    order = np.argsort(terms)
    numbers = np.array(list(vocabulary.values()))[order]
    starts = np.asarray(model.scores["indptr"])
    # Columns are put into the order of the sorted terms, so that a term's place is its column.
    lengths = np.diff(starts)[numbers]
    take = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in numbers]) if len(numbers) else np.array([], int)
    arrays = {
        "terms": terms[order],
        "starts": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "documents": np.asarray(model.scores["indices"])[take].astype(np.int32),
        "scores": np.asarray(model.scores["data"])[take].astype(np.float32),
    }
    for name in _NAMES:
        np.save(folder / f"index_{name}.npy", arrays[name])


class Index:
    """A folder's index, memory-mapped."""

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        """Opens the arrays; `count` is the number of documents."""
        self._terms, self._starts, self._documents, self._scores = (
            np.load(folder / f"index_{name}.npy", mmap_mode="r") for name in _NAMES
        )
        self._count = count

    def search(self, keywords: str, limit: int) -> tuple[int, ...]:
        """Returns the best `limit` documents that share a term with the query, best first."""
        totals = np.zeros(self._count, np.float32)
        for word in words(keywords):
            place = int(np.searchsorted(self._terms, word))
            if place < len(self._terms) and self._terms[place] == word:
                found = slice(int(self._starts[place]), int(self._starts[place + 1]))
                totals[self._documents[found]] += self._scores[found]
        hits = np.flatnonzero(totals)
        if len(hits) > limit:
            least = np.partition(totals[hits], -limit)[-limit]
            hits = hits[totals[hits] >= least]
        return tuple(int(hit) for hit in hits[np.lexsort((hits, -totals[hits]))][:limit])


@contextlib.contextmanager
def _without_jax() -> Iterator[None]:
    """Keeps bm25s from loading jax, which it would only sort with, and which would take hold of an accelerator."""
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # what `import` reads as "there is none"
    try:
        yield
    finally:
        if hidden:
            del sys.modules["jax"]
