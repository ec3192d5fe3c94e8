"""Reading act and review turns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_jax.agents.parsing import Flag, parse_act, parse_review
from sage_jax.skills import CallFailure, ToolCall

ADMISSIBLE = ("go to cabinet 1", "take mug 1 from shelf 1", "look", "search[red shoes]")


def test_a_clean_turn():
    parse = parse_act("<think>I need the mug.</think><action>take mug 1 from shelf 1</action>", admissible=ADMISSIBLE)
    assert (parse.action, parse.thought, parse.flags) == ("take mug 1 from shelf 1", "I need the mug.", frozenset())


@pytest.mark.parametrize(
    "text",
    [
        "<think> go </think> <action> go to cabinet 1 </action>",
        "< think > go < / think >\n< action >\n Go  TO cabinet 1 < / action >",
        "<THINK>go</THINK><ACTION>go to cabinet1</ACTION>",
    ],
)
def test_case_and_spaces_do_not_matter(text):
    parse = parse_act(text, admissible=ADMISSIBLE)
    assert (parse.action, parse.thought, parse.flags) == ("go to cabinet 1", "go", frozenset())


def test_an_admissible_action_is_given_back_as_the_environment_spells_it():
    parse = parse_act("<think>x</think><action> search [ red shoes ] </action>", admissible=ADMISSIBLE)
    assert parse.action == "search[red shoes]"
    same = ("put a b", "pu tab", "Put ab")
    assert parse_act("<think>x</think><action>pu tab</action>", admissible=same).action == "pu tab"
    assert parse_act("<think>x</think><action>puta b</action>", admissible=same).action == "put a b"


def test_an_action_inside_the_thought_is_not_taken():
    text = "<think>not <action>look</action> yet</think><action>go to cabinet 1</action>"
    parse = parse_act(text)
    assert (parse.action, parse.flags) == ("go to cabinet 1", frozenset())
    only_inside = parse_act("<think>maybe <action>look</action></think>")
    assert (only_inside.action, only_inside.flags) == (None, {Flag.NO_ACTION})


def test_the_first_of_several_actions_counts():
    parse = parse_act("<think>x</think><action>look</action> Nothing. <action>go to cabinet 1</action>")
    assert (parse.action, parse.flags) == ("look", {Flag.MANY_ACTIONS})


@pytest.mark.parametrize(
    ("text", "action", "flags"),
    [
        ("<action>look</action>", "look", {Flag.NO_THINK, Flag.NO_THINK_OPEN}),
        ("<think>so <action>look</action>", "look", {Flag.NO_THINK}),
        ("so</think><action>look</action>", "look", {Flag.NO_THINK_OPEN}),
        ("<think>x</think>look", None, {Flag.NO_ACTION}),
        ("<think>x</think><action>look", None, {Flag.NO_ACTION}),
        ("<think>x</think></action>look<action>", None, {Flag.NO_ACTION}),
        ("look", None, {Flag.NO_THINK, Flag.NO_THINK_OPEN, Flag.NO_ACTION}),
        ("<think>x</think><action> \n </action>", None, {Flag.EMPTY}),
        ("", None, {Flag.EMPTY}),
        (" \n", None, {Flag.EMPTY}),
        ("<think>x</think><action>fly away</action>", "fly away", {Flag.NOT_ADMISSIBLE}),
    ],
)
def test_flags(text, action, flags):
    parse = parse_act(text, admissible=ADMISSIBLE)
    assert (parse.action, parse.flags) == (action, flags)


def test_a_cut_turn_is_flagged():
    assert parse_act("<think>x", truncated=True).flags == {Flag.TRUNCATED, Flag.NO_THINK, Flag.NO_ACTION}
    assert parse_act("", truncated=True).flags == {Flag.TRUNCATED, Flag.EMPTY}


def test_without_a_list_every_action_passes():
    assert parse_act("<think>x</think><action>fly away</action>").flags == frozenset()


@pytest.mark.parametrize(
    "action",
    ["done", "Done.", "finish", "the task is complete", "task completed!", "my goal has been achieved", "stop"],
)
def test_claims_of_completion(action):
    parse = parse_act(f"<think>x</think><action>{action}</action>", admissible=ADMISSIBLE)
    assert Flag.CLAIMS_COMPLETION in parse.flags


@pytest.mark.parametrize("action", ["take done 1 from shelf 1", "finish line 1", "put mug 1", "complete"])
def test_other_actions_claim_nothing(action):
    assert Flag.CLAIMS_COMPLETION not in parse_act(f"<think>x</think><action>{action}</action>").flags


def test_an_action_on_offer_is_never_a_claim():
    assert parse_act("<think>x</think><action>stop</action>", admissible=("stop",)).flags == frozenset()


def test_repetition():
    sentence = "i should look inside of the first cabinet "
    twice = parse_act(f"<think>{sentence * 2}</think><action>look</action>")
    thrice = parse_act(f"<think>x {sentence * 3}</think><action>look</action>")
    assert Flag.REPETITION not in twice.flags
    assert Flag.REPETITION in thrice.flags


# Review turns.


def test_a_clean_review():
    parse = parse_review(
        "<think> it helped </think> "
        '<tool_call> { " name " : " keep_skill " , " arguments " : { " reason " : " ok " } } </tool_call>'
    )
    assert parse.call == ToolCall("keep_skill", {"reason": "ok"})
    assert (parse.thought, parse.flags) == ("it helped", frozenset())


def test_a_call_inside_the_thought_is_not_taken():
    call = '<tool_call>{"name": "keep_skill", "arguments": {"reason": "r"}}</tool_call>'
    assert isinstance(parse_review(f"<think>{call}</think>").call, CallFailure)
    parse = parse_review(f"<think>{call}</think>{call}")
    assert parse.call == ToolCall("keep_skill", {"reason": "r"})


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("", {Flag.EMPTY, Flag.NO_TOOL_TAGS}),
        ('<think>x</think>{"name": "keep_skill"}', {Flag.NO_TOOL_TAGS}),
        ("<think>x</think><tool_call>{}", {Flag.NO_TOOL_TAGS}),
        ("<tool_call>{}</tool_call>", {Flag.NO_THINK, Flag.NO_THINK_OPEN}),
        ("<think>x</think><tool_call>{}</tool_call>", set()),
    ],
)
def test_review_flags(text, flags):
    parse = parse_review(text)
    assert isinstance(parse.call, CallFailure)
    assert parse.flags == flags


_pieces = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<action>",
        "</action>",
        "<tool_call>",
        "</tool_call>",
        "<",
        " ",
        "look",
        '{"name":',
        "}",
        "é",
    ]
)
_text = st.text(alphabet=st.characters(codec=None)) | st.lists(_pieces, max_size=30).map("".join)


@given(_text, st.booleans())
def test_no_text_raises(text, truncated):
    parse = parse_act(text, truncated=truncated, admissible=ADMISSIBLE)
    assert (Flag.TRUNCATED in parse.flags) == truncated
    assert (parse.action is None) == bool(parse.flags & {Flag.EMPTY, Flag.NO_ACTION})
    assert (parse.action in ADMISSIBLE) == (not parse.flags & {Flag.EMPTY, Flag.NO_ACTION, Flag.NOT_ADMISSIBLE})
    review = parse_review(text, truncated=truncated)
    assert isinstance(review.call, ToolCall | CallFailure)


@given(st.text(max_size=30).filter(lambda t: "<" not in t), st.sampled_from(ADMISSIBLE))
def test_what_is_written_in_the_format_is_read_back(thought, action):
    parse = parse_act(f"<think>{thought}</think><action>{action}</action>", admissible=ADMISSIBLE)
    assert (parse.action, parse.thought) == (action, thought.strip())


def test_long_hostile_text_is_read_in_linear_time():
    # Quadratic patterns would take minutes here and trip the suite's time limit.
    for piece in ("<", "< ", "<think>", "<action>", "</think>", "<tool_call>", "a "):
        text = piece * (400_000 // len(piece))
        parse_act(text)
        parse_review(text)


FORMS = ("search[<keywords>]", "click[buy now]", "give <thing> to <person>")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("search[red shoes]", "search[red shoes]"),
        ("Search [ red  shoes , size 9 ]", "search[red shoes , size 9]"),
        ("search[a[b]]", "search[a[b]]"),
        ("click [ Buy Now ]", "click[buy now]"),
        ("give mug to ann", "give mug to ann"),
    ],
)
def test_a_form_is_filled_in_and_keeps_its_own_spelling(written, read):
    parse = parse_act(f"<think> t </think> <action> {written} </action>", admissible=FORMS)
    assert (parse.action, parse.flags) == (read, frozenset())


@pytest.mark.parametrize("written", ["search[]", "search[ ]", "search red", "click[red]", "give to ann"])
def test_what_fills_no_form_is_not_admissible(written):
    parse = parse_act(f"<think> t </think> <action> {written} </action>", admissible=FORMS)
    assert Flag.NOT_ADMISSIBLE in parse.flags
