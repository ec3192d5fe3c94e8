import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import ConfigError
from sage_jax.skills.program_retrieval import (
    METHODS,
    ProgramRetrieval,
    hashed_embedding,
    ngrams,
    overlap,
    retrieve_programs,
)
from sage_jax.skills.programs import Origin, Program

NOTES = "How many of my notes carry the tag 'garden'?"
ALARMS = "Switch off all phone alarms that are set before 9:00."
LIBRARY = (
    Program("count_notes", "def count_notes(tag): ...", origin=Origin("1_1", "1", NOTES)),
    Program("open_app", "def open_app(app): ...", origin=Origin("1_1", "1", NOTES)),
    Program("alarms_off", "def alarms_off(start, end): ...", origin=Origin("2_1", "2", ALARMS)),
)


def names(method: str, query: str, scenario: str = "", **options) -> list[str]:
    config = ProgramRetrieval(method, **options)
    return [p.name for p in retrieve_programs(LIBRARY, query=query, scenario=scenario, config=config)]


def test_each_method_finds_the_notes():
    query = "How many of my notes carry the tag 'chess'?"
    assert names("scenario", "anything", "1") == ["count_notes", "open_app"]
    assert names("ngram", query) == ["count_notes", "open_app"]
    assert names("query_embedding", query) == ["count_notes", "open_app"]
    assert names("skill_embedding", query, programs=1) == ["count_notes"]
    assert names("none", query, "1") == []


def test_limits_and_thresholds():
    assert names("ngram", NOTES, min_overlap=1.01) == []
    assert names("ngram", NOTES, min_overlap=0.0, queries=1) == ["count_notes", "open_app"]
    assert len(names("ngram", NOTES, min_overlap=0.0, queries=2)) == 3
    assert names("query_embedding", ALARMS, queries=1) == ["alarms_off"]
    assert names("query_embedding", NOTES, queries=0) == []
    assert len(names("skill_embedding", "", programs=2)) == 2


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_library_gives_nothing(method: str):
    assert retrieve_programs((), query="x", scenario="1", config=ProgramRetrieval(method)) == ()


def test_overlap_by_hand():
    # "a b c d" has abc, bcd; "a b c x y" has abc, bcx, cxy: one of the smaller two.
    assert overlap(ngrams("a b c d", 3), ngrams("a b c x y", 3)) == 0.5
    assert ngrams("one two", 3) == {("one", "two")}
    assert overlap(ngrams("", 3), ngrams("a", 3)) == 0.0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_embeddings_are_unit_vectors_or_zero(texts: list[str]):
    lengths = np.linalg.norm(hashed_embedding(texts), axis=1)
    assert np.all(np.isclose(lengths, 1.0) | (lengths == 0.0))


def test_an_embedding_is_the_same_everywhere():
    vector = hashed_embedding(["notes"])[0]
    assert np.flatnonzero(vector).tolist() == np.flatnonzero(hashed_embedding(["Notes!"])[0]).tolist()
    assert float(hashed_embedding(["count_notes"])[0] @ vector) > float(hashed_embedding(["alarms_off"])[0] @ vector)


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match="skill_embedding"):
        ProgramRetrieval("embedding")
    with pytest.raises(ConfigError, match="ngram=0"):
        ProgramRetrieval(ngram=0)


def test_an_embedder_that_fails_is_not_taken_for_an_answer():
    def broken(texts):
        return np.full((len(texts), 2), np.nan)

    with pytest.raises(ConfigError, match="NaN"):
        retrieve_programs(LIBRARY, query="x", scenario="", config=ProgramRetrieval("query_embedding"), embed=broken)
