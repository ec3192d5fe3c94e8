"""Tool calls in text: what is one, what stays text, and that nothing is lost."""

import json

import hypothesis
import hypothesis.strategies as st
import pytest

from sage_jax.rollout.tool_calls import split_tool_calls


def block(value):
    return f"<tool_call>\n{json.dumps(value)}\n</tool_call>"


def test_calls_come_in_order_and_the_text_beside_them_stays():
    first, second = {"name": "find", "arguments": {"what": "lamp"}}, {"name": "stop", "arguments": {}}
    text, calls = split_tool_calls(f"I look.\n{block(first)}\n{block(second)}")
    assert text == "I look."
    assert [(call["type"], call["function"]["name"]) for call in calls] == [("function", "find"), ("function", "stop")]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"what": "lamp"}, {}]
    assert len({call["id"] for call in calls}) == 2


def test_an_end_tag_in_an_argument_does_not_end_the_call():
    value = {"name": "write", "arguments": {"text": "} </tool_call> ä"}}
    text, (call,) = split_tool_calls(block(value))
    assert (text, json.loads(call["function"]["arguments"])) == ("", value["arguments"])
    assert "ä" in call["function"]["arguments"]


def test_the_end_tag_may_have_been_cut_off_as_a_stop():
    text, (call,) = split_tool_calls('<tool_call>{"name": "now"}')
    assert (text, call["function"]) == ("", {"name": "now", "arguments": "{}"})


@pytest.mark.parametrize(
    "inner",
    [
        "",
        "find lamp",
        '{"name": "find", "arguments": {"what": "la',
        "{'name': 'find'}",
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "find", "arguments": "lamp"}',
        '{"name": "find", "arguments": [1]}',
        '{"name": "find", "arguments": {"x": NaN}}',
        '{"name": "find", "arguments": {"x": "\\ud800"}}',
        '{"name": "find"} and more',
        '["find"]',
        '{"name": ' + "[" * 5000,
    ],
)
def test_what_is_no_call_stays_text(inner):
    text = f" before <tool_call>{inner}</tool_call> after "
    assert split_tool_calls(text) == (text, [])


def test_a_broken_call_does_not_hide_a_whole_one():
    text, (call,) = split_tool_calls(f"<tool_call>oh {block({'name': 'find'})}")
    assert (text, call["function"]["name"]) == ("<tool_call>oh", "find")


@hypothesis.given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "a"}', "{", "}", " ", "b"])))
def test_any_text_is_kept_but_for_its_calls(parts):
    text = "".join(parts)
    rest, calls = split_tool_calls(text)
    if not calls:
        assert rest == text
    assert rest.count("b") == text.count("b")
    assert text.count('{"name": "a"}') == rest.count('{"name": "a"}') + len(calls)
