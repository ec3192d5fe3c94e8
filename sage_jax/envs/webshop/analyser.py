"""Words of documents and queries, as Lucene's English analyser cuts them: lower case, stop words out, Porter stems."""

from __future__ import annotations

import functools
import re

import Stemmer

_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
MAX_BYTES = 32  # longer words are cut, so that the vocabulary is an array of fixed width


@functools.lru_cache(maxsize=1)
def _stemmer() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("porter")


def words(text: str) -> list[bytes]:
    """Returns the terms of a text, in order."""
    kept = [word for word in _WORD.findall(text.lower().replace("'s", "")) if word not in _STOP_WORDS]
    return [stem.encode()[:MAX_BYTES] for stem in _stemmer().stemWords(kept)]
