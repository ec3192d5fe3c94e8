"""Which programs an agent is given for a new task: SAGE's four retrievals.

All look back over the tasks that the library's programs came from. The paper leaves n, thresholds and the embedding
model open; they are settings. `hashed_embedding` needs no download and stands where a sentence model would.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from sage_jax.errors import ConfigError
from sage_jax.skills.programs import Program
from sage_jax.skills.skill import normalise_words

Embedder = Callable[[Sequence[str]], "Float[np.ndarray, 'n D']"]
WIDTH = 1024
_BONUS_WHOLE = 2.0  # a whole word says more than a piece of one


@dataclasses.dataclass(frozen=True)
class ProgramRetrieval:
    """How programs are chosen.

    Attributes:
      method: a key of `METHODS`.
      ngram: length of word sequences compared by "ngram". # Unspecified: n.
      min_overlap: least overlap of two queries' n-grams, as a share of the smaller set. # Unspecified.
      min_similarity: least cosine of two embeddings. # Unspecified.
      queries: most earlier queries whose programs are taken ("ngram", "query_embedding").
      programs: most programs taken by "skill_embedding".
    """

    method: str = "scenario"
    ngram: int = 3
    min_overlap: float = 0.3
    min_similarity: float = 0.5
    queries: int = 2
    programs: int = 6

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"program retrieval is {self.method!r}, expected one of {', '.join(METHODS)}")
        if self.ngram < 1 or self.queries < 0 or self.programs < 0:
            raise ConfigError(
                f"program retrieval cannot have ngram={self.ngram}, queries={self.queries}, programs={self.programs}"
            )


def retrieve_programs(
    programs: Sequence[Program],
    *,
    query: str,
    scenario: str,
    config: ProgramRetrieval,
    embed: Embedder | None = None,
) -> tuple[Program, ...]:
    """Returns the programs to load for a task, in the library's order but for "skill_embedding" (best first).

    Args:
      programs: the library's.
      query: the task's instruction.
      scenario: the task's scenario, read by "scenario" alone: a label that only evaluation in order has.
      config: how to choose.
      embed: texts -> unit vectors; `hashed_embedding` by default.
    """
    return METHODS[config.method](programs, query, scenario, config, embed or hashed_embedding)


def _none(programs: Sequence[Program], query: str, scenario: str, config: ProgramRetrieval, embed: Embedder) -> tuple:
    return ()


def _scenario(
    programs: Sequence[Program], query: str, scenario: str, config: ProgramRetrieval, embed: Embedder
) -> tuple:
    return tuple(program for program in programs if program.origin.scenario == scenario)


def _ngram(programs: Sequence[Program], query: str, scenario: str, config: ProgramRetrieval, embed: Embedder) -> tuple:
    mine = ngrams(query, config.ngram)
    queries = _queries(programs)
    return _of_best_queries(
        programs, queries, [overlap(mine, ngrams(q, config.ngram)) for q in queries], config.min_overlap, config.queries
    )


def _query_embedding(
    programs: Sequence[Program], query: str, scenario: str, config: ProgramRetrieval, embed: Embedder
) -> tuple:
    queries = _queries(programs)
    if not queries:
        return ()
    vectors = embed([query, *queries])
    return _of_best_queries(programs, queries, list(vectors[1:] @ vectors[0]), config.min_similarity, config.queries)


def _skill_embedding(
    programs: Sequence[Program], query: str, scenario: str, config: ProgramRetrieval, embed: Embedder
) -> tuple:
    if not programs:
        return ()
    vectors = embed([query, *(f"{program.name} {program.source}" for program in programs)])
    scores = [round(float(score), 5) for score in vectors[1:] @ vectors[0]]
    order = sorted(range(len(programs)), key=lambda i: (-scores[i], i))
    return tuple(programs[i] for i in order[: config.programs])


METHODS: dict[str, Callable[..., tuple[Program, ...]]] = {
    "none": _none,
    "scenario": _scenario,
    "ngram": _ngram,
    "query_embedding": _query_embedding,
    "skill_embedding": _skill_embedding,
}


def ngrams(text: str, n: int) -> frozenset[tuple[str, ...]]:
    """Returns the word n-grams of a text; of a text with fewer words, the text as one."""
    words = normalise_words(text).split()
    return frozenset(tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))) if words else frozenset()


def overlap(left: frozenset, right: frozenset) -> float:
    """Returns the common share of the smaller set, 0 when one is empty."""
    return len(left & right) / min(len(left), len(right)) if left and right else 0.0


def hashed_embedding(texts: Sequence[str]) -> Float[np.ndarray, "n {WIDTH}"]:
    """Returns unit vectors of words and of pieces of words, hashed into `WIDTH` places; the same on every machine.

    A text without a word gives zeros, which are similar to nothing.
    """
    vectors = np.zeros((len(texts), WIDTH))
    for row, text in enumerate(texts):
        for word in re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()):
            vectors[row, _place(word)] += _BONUS_WHOLE
            for start in range(len(word) - 2):
                vectors[row, _place(f"#{word[start : start + 3]}")] += 1.0
    vectors = np.log1p(vectors)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def sentence_embedding(model: str) -> Embedder:
    """Returns an embedder by a sentence-transformers model, a name or a folder.

    Raises:
      ConfigError: the package is not installed.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise ConfigError(f"embedding by {model!r} needs the package sentence-transformers: pip install it") from error
    loaded = sentence_transformers.SentenceTransformer(model)
    return lambda texts: np.asarray(loaded.encode(list(texts), normalize_embeddings=True), np.float64)


def _place(piece: str) -> int:
    """Returns a piece's place; Python's own hash differs from process to process."""
    value = 2166136261
    for byte in piece.encode():
        value = (value ^ byte) * 16777619 % (1 << 32)
    return value % WIDTH


def _queries(programs: Sequence[Program]) -> list[str]:
    return list(dict.fromkeys(program.origin.query for program in programs if program.origin.query))


def _of_best_queries(
    programs: Sequence[Program], queries: Sequence[str], scores: Sequence[float], least: float, most: int
) -> tuple[Program, ...]:
    """Returns the programs of the best queries that reach `least`; ties go to the later query, which saw more."""
    if any(math.isnan(score) for score in scores):
        raise ConfigError("an embedder returned NaN")
    good = [i for i, score in enumerate(scores) if score >= least]
    best = sorted(good, key=lambda i: (-round(float(scores[i]), 5), -i))[:most]
    chosen = {queries[i] for i in best}
    return tuple(program for program in programs if program.origin.query in chosen)
