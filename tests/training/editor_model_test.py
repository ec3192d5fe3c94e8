"""The lessons of the small editor: what they show, how often a step is kept, and where the model has to look for it."""

import random

import pytest

from sage_jax.agents.chat import ChatTemplate
from sage_jax.data.editor_corpus import KEEP_FAILED, KEEP_SOLVED, STEPS_OF_A_SKILL, editor_words, lessons
from sage_jax.data.sft import conversation_sequence, text_encoder
from sage_jax.data.word_tokenizer import build_tokenizer
from sage_jax.training.editor_model import COPY_OFFSET, MODEL


@pytest.fixture(scope="module")
def drawn():
    """Prompts with two answers each."""
    rng = random.Random(7)
    return [lessons(rng, 2) for _ in range(300)]


def steps(text: str) -> list[str]:
    return text.split(" . ")


def test_answers_share_their_prompt_and_have_the_form_of_a_skill(drawn):
    for first, second in drawn:
        assert first[0] == second[0]
        assert {len(steps(answer)) for _, (_, answer, trained) in (first, second) if trained} == {STEPS_OF_A_SKILL}


def test_the_only_outcome_in_a_prompt_is_the_last_skills(drawn):
    for (_, prompt, _), _ in (first for first, _ in drawn):
        assert sum(prompt.count(word) for word in ("failed", "helped", "worked")) == 1
        assert "rollout" not in prompt


@pytest.mark.parametrize(("word", "keep"), [("worked", KEEP_SOLVED), ("failed", KEEP_FAILED)])
def test_a_step_is_kept_as_often_as_said(drawn, word, keep):
    kept = []
    for (_, prompt, _), (_, answer, _) in (lesson for pair in drawn for lesson in pair):
        if word in prompt and len(old := steps(prompt.splitlines()[-1])) == STEPS_OF_A_SKILL:
            kept += [a == b for a, b in zip(old, steps(answer), strict=True)]
    assert len(kept) > 300
    # One new step in eight or so is the old one again.
    assert keep - 0.06 < sum(kept) / len(kept) < keep + 0.2 * (1 - keep) + 0.06


def test_the_second_head_looks_at_the_same_place_of_the_last_skill(drawn):
    tokenizer = build_tokenizer(editor_words(), MODEL.vocab_size)
    encode, template = text_encoder(tokenizer), ChatTemplate.from_tokenizer(tokenizer)
    for lesson in (pair[0] for pair in drawn):
        old = lesson[0][1].splitlines()[-1]
        if len(steps(old)) < STEPS_OF_A_SKILL:
            continue  # the seed skill
        sequence = conversation_sequence(lesson, encode, template)
        places = sequence.mask.nonzero()[0][:-1]  # the last one is the end of the answer
        assert tuple(sequence.ids[places - 1 - COPY_OFFSET]) == encode(old)
