"""Tool calls as text, in the forms that models write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.tools import parse_action, parse_react


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("visit_page[Read more (2)]", "visit_page", "Read more (2)"),
        (" find[ a [b] c ] ", "find", "a [b] c"),
        ('read_file[{"name": "a.csv", "rows": 5}]', "read_file", {"name": "a.csv", "rows": 5}),
        ("python[{1: 2}[1]]", "python", "{1: 2}[1]"),  # no JSON: the bare text
        ('answer[{"a": 1}]', "answer", '{"a": 1}'),  # an answer is always text
        ("python[a = 1\nprint(a)]", "python", "a = 1\nprint(a)"),
        ("answer[]", "answer", ""),
    ],
)
def test_actions(text, name, arguments):
    call = parse_action(text)
    assert (call.name, call.arguments, call.problem) == (name, arguments, "")
    assert parse_action(call.text).arguments == arguments


@pytest.mark.parametrize("text", ["", "visit page", "visit_page", "[x]", "go[x] now"])
def test_no_actions(text):
    assert parse_action(text).problem


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("Thought: look\nAction: find\nAction Input: fee\nObservation: made up", "find", "fee"),
        ('Action: read_file\nAction Input: {"name": "a"} and so on', "read_file", {"name": "a"}),
        ("Thought: done\nFINAL ANSWER: 17", "answer", "17"),
        ("Final answer : a\nb", "answer", "a\nb"),
        ("Action: find\nAction Input: x\nFINAL ANSWER: guessed before it looked", "find", None),
        ("I will click.\nvisit_page[Home]\n", "visit_page", "Home"),
        ("Action: visit_page[Home]", "visit_page", "Home"),
    ],
)
def test_react(text, name, arguments):
    call = parse_react(text)
    assert call.name == name
    assert not call.problem
    if arguments is not None:
        assert call.arguments == arguments


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no tool call"),
        ("I do not know.", "no tool call"),
        ('Action: find\nAction Input: {"text": ', "is not JSON"),
        ("Action: find", "no tool call"),
    ],
)
def test_malformed(text, problem):
    assert problem in parse_react(text).problem


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=100))
def test_any_text_is_read(text):
    parse_react(text)
    parse_react(f"Action: a\nAction Input: {text}")
    parse_action(text)
