"""Which skills are shown, in which order, and as which text."""

import random

import numpy as np
import pytest

from sage_jax.errors import ConfigError
from sage_jax.skills import GENERAL, MISTAKE, RetrievalConfig, SkillBank, render_skills, retrieve
from sage_jax.skills.retrieval import rank_by_words


def _bank(general: int = 4, heat: int = 3, cool: int = 2, mistakes: int = 7) -> SkillBank:
    bank = SkillBank()
    counts = {GENERAL: general, "heat": heat, "cool": cool, MISTAKE: mistakes}
    for category, count in counts.items():
        for i in range(count):
            bank = bank.add(category=category, title=f"{category} {i}", principle=f"do {category} {i}")
    return bank


def _ids(bank, task_text="heat a mug", category="heat", **config):
    return [s.id for s in retrieve(bank, task_text=task_text, category=category, config=RetrievalConfig(**config))]


def test_template_takes_the_first_general_all_of_the_category_and_some_mistakes():
    assert _ids(_bank(), top_k=2) == [
        "gen_1",
        "gen_2",
        "task_1",
        "task_2",
        "task_3",
        *[f"err_{i}" for i in range(1, 6)],
    ]
    assert _ids(_bank(), top_k=0, category_limit=1, mistakes=0) == ["task_1"]
    assert _ids(_bank(), category="cool", top_k=0, mistakes=0) == ["task_4", "task_5"]
    assert _ids(_bank(), category="slice", top_k=1, mistakes=0) == ["gen_1"]


@pytest.mark.parametrize("method", ["none", "template", "bm25", "condition", "all"])
def test_an_empty_bank_gives_nothing(method):
    assert _ids(SkillBank(), method=method) == []


def test_none_gives_nothing():
    assert _ids(_bank(), method="none") == []


def _worded(texts, category=GENERAL):
    bank = SkillBank()
    for i, text in enumerate(texts):
        bank = bank.add(category=category, title=f"t{i}", principle=text)
    return bank


def test_bm25_takes_what_shares_words_with_the_task():
    bank = _worded(["open every drawer", "heat the mug in the microwave", "clean a plate", "a hot mug is heated"])
    assert _ids(bank, "put a hot mug in the cabinet", method="bm25", top_k=2) == ["gen_4", "gen_2"]


def test_condition_takes_what_applies_and_nothing_else():
    bank = SkillBank()
    for thing in ("mug", "apple", "hot mug"):
        bank = bank.add(category="heat", title=f"{thing} at mug", principle=thing, when_to_apply=f"to search {thing}")
    bank = bank.add(category="general", title="look", principle="look at the mug", when_to_apply="")
    words = {"category": "cool", "method": "condition"}  # the category does not matter
    assert _ids(bank, "put a mug in the cabinet", **words) == ["task_1", "task_3"]
    assert _ids(bank, "put a mug in the cabinet", **words, top_k=1) == ["task_1"]
    assert _ids(bank, "put a spoon in the cabinet", **words) == []


def test_all_takes_every_category_in_the_banks_order():
    ids = [skill.id for skill in _bank()]
    assert _ids(_bank(), "heat 2", category="cool", method="all", top_k=99) == ids
    assert _ids(_bank(), "heat 2", category="cool", method="all", top_k=2) == ids[:2]


def test_bm25_limits_each_kind():
    bank = _bank()
    ids = _ids(bank, "heat 2", method="bm25", top_k=1, mistakes=2)
    assert ids == ["gen_3", "task_3", "err_3", "err_1"]
    assert len(_ids(bank, "heat 2", method="bm25", top_k=1, category_limit=3, mistakes=0)) == 4


def test_ties_keep_the_banks_order():
    bank = _worded(["take the mug"] * 5 + ["nothing here"] * 5)
    assert [s.id for s in rank_by_words(bank.skills, "mug")] == [f"gen_{i}" for i in range(1, 11)]
    assert [s.id for s in rank_by_words(bank.skills, "no shared word")] == [f"gen_{i}" for i in range(1, 11)]
    assert rank_by_words(bank.skills, "?!") == bank.skills


def test_skills_without_words_do_no_harm():
    assert len(rank_by_words(_worded(["?!", "mug"]).skills, "mug")) == 2
    bank = SkillBank().add(category=GENERAL, title="!", principle="?")
    assert rank_by_words(bank.skills, "mug") == bank.skills


def _bm25_reference(documents, query, k1=1.5, b=0.75):
    """Lucene's BM25 in float64 with loops."""
    scores = []
    mean = sum(len(d) for d in documents) / len(documents)
    for document in documents:
        score = 0.0
        for word in query:
            holding = sum(word in d for d in documents)
            idf = np.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            count = document.count(word)
            score += idf * count / (k1 * (1 - b + b * len(document) / mean) + count)
        scores.append(score)
    return scores


def test_the_ranking_is_that_of_a_float64_reference():
    rng = random.Random(0)
    words = ["mug", "plate", "heat", "cool", "open", "drawer", "shelf", "lamp"]
    for _ in range(20):
        texts = [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(12)]
        query = rng.choices(words, k=4)
        scores = _bm25_reference([[f"t{i}", *t.split()] for i, t in enumerate(texts)], query)
        ranked = [int(s.title[1:]) for s in rank_by_words(_worded(texts).skills, " ".join(query))]
        expected = sorted(range(12), key=lambda i: (-round(scores[i], 5), i))
        # Scores closer than float32 can tell may come in either order.
        np.testing.assert_allclose([scores[i] for i in ranked], [scores[i] for i in expected], atol=2e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [({"method": "emb"}, "'emb'.*template"), ({"top_k": -1}, "top_k is -1"), ({"mistakes": -2}, "mistakes is -2")],
)
def test_a_wrong_config_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        RetrievalConfig(**config)


def test_full_text():
    bank = SkillBank().add(category=GENERAL, title="Look", principle="Look around.", when_to_apply="at the start")
    bank = bank.add(category=GENERAL, title="Take", principle="Take it.")
    bank = bank.add(category="heat", title="Heat", principle="Use the microwave.")
    bank = bank.add(category=MISTAKE, title="Closed", principle="Open it.", when_to_apply="haste")
    assert render_skills(bank.skills) == (
        "General skills:\n- Look: Look around. (at the start)\n- Take: Take it.\n"
        "Skills for this task:\n- Heat: Use the microwave.\n"
        "Common mistakes:\n- Closed: Open it. (haste)"
    )
    assert "- [task_1] Heat: Use" in render_skills(bank.skills, ids=True)


def test_short_text_and_empty_text():
    bank = _worded(["one", "two"])
    assert render_skills(bank.skills, style="short") == "gen_1 one\ngen_2 two"
    assert render_skills((), style="short") == render_skills((), style="full") == ""
    with pytest.raises(ConfigError, match="'long'.*full, short"):
        render_skills((), style="long")
