"""The corpus of code: what it holds, that its expert can do the tasks, and that nothing of it is lost in tokens."""

import random

import pytest

from sage_jax.agents.chat import ChatTemplate
from sage_jax.data import code_corpus
from sage_jax.data.code_tokenizer import build_code_tokenizer
from sage_jax.data.sft import conversation_sequence, text_encoder
from sage_jax.envs.appworld.lite.state import State
from sage_jax.envs.appworld.twin.base import COMPLETE, Solution
from sage_jax.envs.appworld.twin.world import CHALLENGE, SEEN, make_person, solution_functions
from sage_jax.errors import ConfigError


@pytest.fixture(scope="module")
def tokenizer():
    return code_corpus.make_tokenizer(1280)


@pytest.fixture(scope="module")
def traces():
    rng = random.Random(5)
    return [code_corpus.code_trace(rng) for _ in range(300)]


def test_text_is_read_back_to_the_letter(tokenizer, traces):
    encode = text_encoder(tokenizer)
    texts = [text for trace in traces[:60] for _, text, _ in trace]
    odd = ("x ## y ##a Ġ b Ċ", "x1 1x 1 2 a_b _a b_ 9:00", "Ünusual\ttext  with   spaces\n\n\n      deep")
    for text in [*texts, *odd, "<action>\nX_y = 'A'\n</action>"]:
        assert tokenizer.decode(encode(text)) == text


def test_a_word_is_one_token_wherever_it_stands(tokenizer):
    encode = text_encoder(tokenizer)
    (garden,) = encode("garden")
    for text in ("'garden'", "the garden", "garden rope", "count_notes('garden')"):
        assert garden in encode(text)


def test_the_space_between_two_words_is_no_token(tokenizer):
    encode = text_encoder(tokenizer)
    assert encode("the garden rope") == encode("the") + encode("garden") + encode("rope")


def test_a_vocabulary_that_the_texts_do_not_fill_is_refused():
    with pytest.raises(ConfigError, match="vocab_size=900"):
        build_code_tokenizer(["few words"], 900)


def test_traces_are_conversations_that_end_with_the_completion(tokenizer, traces):
    encode, template = text_encoder(tokenizer), ChatTemplate.from_tokenizer(tokenizer)
    for trace in traces:
        sequence = conversation_sequence(trace, encode, template)
        assert sequence.mask.sum() > 10
        assert COMPLETE in trace[-1][1]
    shown = ["You have these functions:" in trace[0][1] for trace in traces]
    assert 0.4 < sum(shown) / len(traces) < 0.6
    used = [
        "def " not in trace[1][1] and "api_docs" not in trace[1][1]
        for trace, has in zip(traces, shown, strict=True)
        if has
    ]
    assert 0.5 < sum(used) / len(used) < 0.8
    assert any("Execution failed" in text for trace in traces for _, text, _ in trace)


def test_the_challenge_app_is_never_in_it(traces):
    apps = {app for template in CHALLENGE for app in template.apps}
    text = " ".join(text for trace in traces for _, text, _ in trace).lower()
    assert not [app for app in apps if app in text]


def solves(template, functions: str, seeds=range(12)) -> float:
    """Returns the share of tasks of a template that the functions solve."""
    won = []
    for seed in seeds:
        rng = random.Random(seed)
        person = make_person(seed, rng)
        for draft in template.make(person, rng):
            task = code_corpus._task(template, draft)
            shell = code_corpus.LocalShell(person, task)
            state: State = shell._names["apis"]._state
            for code in (*Solution(functions, draft.call).turns(),):
                shell.run(code)
            won.append(all(state.tests().values()))
    return sum(won) / len(won)


@pytest.mark.parametrize("template", SEEN, ids=lambda template: template.name)
def test_every_slip_costs_tasks_and_the_right_code_none(template):
    assert solves(template, solution_functions(template), range(3)) == 1.0
    for right, wrong in code_corpus.SLIPS[template.name]:
        rng = random.Random(0)
        rng.choice = lambda choices, pair=(right, wrong): pair
        functions = code_corpus.slipped(template, rng)
        assert functions != solution_functions(template)
        assert solves(template, functions) < 0.95, (right, wrong)


def test_a_call_exercise_asks_for_what_the_instruction_says():
    for seed in range(20):
        (_, asked, _), (_, answer, trained) = code_corpus.call_exercise(random.Random(seed))
        assert trained
        name = asked.partition("def ")[2].partition("(")[0]
        assert f"answer = {name}(" in answer
        assert asked.count("def ") == 1


def test_an_exercise_of_many_calls_has_one_for_each_instruction():
    for seed in range(20):
        (_, asked, _), (_, answer, _) = code_corpus.calls_exercise(random.Random(seed))
        heads = asked.count("def ")
        assert 2 <= heads <= 4
        assert answer.count("answer = ") == len(asked.split("\n\n")) - heads
