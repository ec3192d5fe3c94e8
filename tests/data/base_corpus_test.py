"""The pre-training corpus: in the vocabulary, trained on the assistant's good turns only, exercises with answers."""

import random
import re

import alfworld.gen.constants as constants
import pytest

from sage_jax.agents.chat import ChatTemplate
from sage_jax.agents.parsing import parse_act, parse_review
from sage_jax.data import base_corpus
from sage_jax.data.base_corpus import EXERCISES, conversations, corpus_words, household_trace
from sage_jax.data.household import FAMILIES, LAMPS, OBJECTS, RECEPTACLES, enumerate_things
from sage_jax.data.sft import conversation_sequence, text_encoder
from sage_jax.data.word_tokenizer import split_words
from sage_jax.envs.alfworld import AlfworldFactory
from sage_jax.skills import TOOLS, EditKind, SkillBank, apply_edit


@pytest.fixture(scope="module")
def words():
    return corpus_words()


def drawn(count, progress, seed=0):
    stream = conversations(random.Random(seed), lambda: progress)
    return [next(stream) for _ in range(count)]


@pytest.mark.parametrize("progress", [0.0, 0.05, 0.15, 0.7, 1.0])
def test_every_conversation_is_in_the_vocabulary_and_masks_assistant_texts_only(word_tokenizer, words, progress):
    encode, template = text_encoder(word_tokenizer), ChatTemplate.from_tokenizer(word_tokenizer)
    for number, messages in enumerate(drawn(400, progress, seed=7)):  # another seed than the vocabulary was read from
        assert [role for role, _, _ in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert not any(trained for role, _, trained in messages if role == "user")
        assert any(trained for _, _, trained in messages)
        sequence = conversation_sequence(messages, encode, template, number)
        assert word_tokenizer.unk_token_id not in sequence.ids
        assert sequence.ids.max() < word_tokenizer.vocab_size
        written = {word for _, text, _ in messages for word in split_words(text)}
        assert written <= words
        assert sequence.mask.sum() == sum(len(encode(text)) + 1 for _, text, trained in messages if trained)


def test_the_vocabulary_covers_names_numbers_and_families(words):
    names = {*OBJECTS, *LAMPS, *RECEPTACLES, *(name.lower() for name in constants.RECEPTACLES)}
    assert names <= words
    assert {str(number) for number in range(100)} <= words
    assert {*FAMILIES, *TOOLS, *(name for arguments in TOOLS.values() for name in arguments)} <= words
    assert corpus_words() == words


def test_the_vocabulary_covers_what_the_real_engine_says_and_offers(words, household_games):
    env = AlfworldFactory()()
    for task in household_games:
        rng = random.Random(0)
        observation = env.reset(task, 0)
        for _ in range(120):
            said = split_words(" ".join((observation.text, *observation.admissible)))
            assert set(said) <= words, set(said) - words
            result = env.step(rng.choice((*observation.admissible, "nonsense")))  # the list lacks "help"
            observation = env.reset(task, 0) if result.done else result
    env.close()


def test_the_stream_is_a_function_of_seed_and_progress():
    assert drawn(60, 0.3, seed=5) == drawn(60, 0.3, seed=5)
    assert drawn(60, 0.3, seed=5) != drawn(60, 0.3, seed=6)


def is_trace(messages):
    return "Your task is to" in messages[0][1]


def test_the_curriculum_moves_from_exercises_to_traces_and_to_large_rooms():
    def shares(progress):
        talks = drawn(500, progress)
        rooms = [talk for talk in talks if is_trace(talk)]
        large = sum(len(re.findall(r"an? [a-z]+ \d+", talk[0][1])) > 12 for talk in rooms)
        return len(rooms) / len(talks), large / len(rooms)

    (early, none), (late, some) = shares(0.0), shares(0.9)
    assert 0.1 < early < 0.3  # 1 - 0.8
    assert 0.45 < late < 0.65  # 1 - 0.45
    assert none == 0
    assert some > 0.02


def test_traces_are_well_formed_and_noise_is_not_trained_on():
    trained = noisy = reviews = won = 0
    for seed in range(300):
        messages = household_trace(random.Random(seed), noise=0.1)
        for place, (role, text, is_trained) in enumerate(messages):
            if role == "user":
                continue
            if "<tool_call>" in text:
                parse = parse_review(text)
                family = messages[place - 1][1].partition("family ")[2].split()[0]
                skills = re.findall(r"skill (\w+ at \w+) : (need \w+ start at \w+)", messages[0][1])
                bank = SkillBank()
                for title, principle in skills:
                    bank = bank.add(category="general", title=title, principle=principle)
                kind = apply_edit(bank, parse.call, task_category=family).kind
                assert kind in (EditKind.ADDED, EditKind.UPDATED, EditKind.KEPT, EditKind.DUPLICATE)
                assert kind is not EditKind.DUPLICATE or len(skills) > 1
                assert (parse.flags, is_trained, place) == (frozenset(), True, len(messages) - 1)
                reviews += 1
                won += "success" in messages[place - 1][1]
            else:
                parse = parse_act(text)
                assert parse.action
                assert not parse.flags
                trained, noisy = trained + is_trained, noisy + (not is_trained)
    assert 0.07 < noisy / (trained + noisy) < 0.13
    assert 110 < reviews < 190
    assert won > 0.9 * reviews


def test_a_trace_that_runs_out_of_steps_is_reviewed_as_a_failure():
    messages = household_trace(random.Random(1), max_steps=3, review=1.0)
    assert [role for role, _, _ in messages] == ["user", "assistant"] * 4
    assert "failure in 3 steps" in messages[-2][1]


def listed(text):
    return re.findall(r"an? ([a-z]+ \d+)", text)


def check_find(prompt, reply):
    answers = re.findall(r"need (\w+) \. (none|see \w+ \d+) \.", reply)
    assert " ".join(f"need {wanted} . {answer} ." for wanted, answer in answers) == reply
    for wanted, answer in answers:
        seen = [thing for thing in listed(prompt) if thing.split()[0] == wanted]
        assert answer == (f"see {seen[0]}" if seen else "none")
    return len({answer == "none" for _, answer in answers}) == 2


def check_successor(prompt, reply):
    things, start = listed(prompt), re.search(r"start at (\w+ \d+)", prompt)[1]
    steps = [step.split(" then ") for step in reply.removesuffix(" .").split(" . ")]
    assert steps[0][0] == start
    for (_, reached), (at, _) in zip(steps, steps[1:], strict=False):
        assert reached == at
    for at, then in steps:
        assert then == things[(things.index(at) + 1) % len(things)]
    return any(things.index(at) == len(things) - 1 for at, _ in steps)


def check_quote(prompt, reply):
    lines = dict(line.split(" : ") for line in prompt.split(" . ")[:-1])
    wanted = re.search(r"find (\w+) \.$", prompt)[1]
    assert reply == f"{wanted} : {lines[wanted]}"
    return list(lines).index(wanted) > 0


def check_rule(prompt, reply):
    wanted = re.search(r"need (\w+) \.$", prompt)[1]
    (where,) = re.findall(rf"to find {wanted} go to (\w+ \d+)", prompt)
    assert reply == f"<action> go to {where} </action>"
    return prompt.index(where) > 30


@pytest.mark.parametrize(
    ("exercise", "check"), list(zip(EXERCISES, (check_find, check_successor, check_quote, check_rule), strict=True))
)
def test_exercises_have_the_one_right_answer(exercise, check):
    hard = 0
    for seed in range(300):
        (user, prompt, _), (assistant, reply, trained) = exercise(random.Random(seed))
        assert (user, assistant, trained) == ("user", "assistant", True)
        hard += check(prompt, reply)
    assert 30 < hard < 290  # both the easy and the hard kind occur


def test_listings_do_not_repeat_a_thing():
    for seed in range(200):
        things = base_corpus._listing(random.Random(seed))
        assert len(set(things)) == len(things) >= 2
        assert listed(enumerate_things(things)) == things
