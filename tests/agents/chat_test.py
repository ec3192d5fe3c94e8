"""The growing context equals what the tokenizer's own template renders, and messages read as they are documented."""

import copy

import pytest

from sage_jax.agents.chat import ChatTemplate, act_text, opening_message, review_message, review_text
from sage_jax.agents.parsing import parse_act, parse_review
from sage_jax.errors import ConfigError
from sage_jax.skills import ToolCall

TALK = (
    "you are in a room. you see a bed 1, and a desk 1.\n\nyour task is to: put a mug in desk.",
    "<think> need mug . </think> <action> go to bed 1 </action>",
    "you arrive at bed 1. on the bed 1, you see nothing.",
    "<think> need mug . bed 1 then desk 1 . </think> <action> go to desk 1 </action>",
    "nothing happens.",
    "<think> need mug . </think> <action> open desk 1 </action>",
    "review .",
)


@pytest.fixture(params=["word_tokenizer", "chatml_tokenizer"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def encode(tokenizer, text):
    return tuple(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("length", [1, 3, 5, 7])
def test_appended_messages_equal_the_whole_conversation_rendered_at_once(tokenizer, length):
    template = ChatTemplate.from_tokenizer(tokenizer)
    ids = ()
    for place, text in enumerate(TALK[:length]):
        if place % 2 == 0:
            ids += template.user(encode(tokenizer, text), first=place == 0)
        else:
            ids += (*encode(tokenizer, text), template.stop_ids[0])
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(TALK[:length])]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ids == encode(tokenizer, whole)
    assert tokenizer.unk_token_id not in ids


def test_a_later_message_does_not_repeat_the_stop_token(tokenizer):
    template = ChatTemplate.from_tokenizer(tokenizer)
    assert template.stop_ids == (tokenizer.eos_token_id,)
    later = template.user((), first=False)
    assert later[0] != tokenizer.eos_token_id
    assert later.count(tokenizer.eos_token_id) == 1  # of the user's message


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has none"),
        ("{% for m in messages %}{{ m['content'] | lower }}{{ '<|end|>' }}{% endfor %}", "verbatim"),
        ("{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{{ '<|end|>' }}{% endfor %}", "verbatim"),
        ("{% for m in messages %}{{ m['content'] }}{{ '<|pad|>' }}{% endfor %}", "not in the eos token"),
    ],
)
def test_a_template_that_does_not_fit_is_refused(word_tokenizer, template, message):
    tokenizer = copy.deepcopy(word_tokenizer)
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=f"chat_template.*{message}"):
        ChatTemplate.from_tokenizer(tokenizer)


def test_the_opening_shows_skills_before_the_room():
    assert opening_message("the room", []) == "the room"
    skills = [("fridge first", "start at fridge"), ("be quick", "do not look twice")]
    assert opening_message("the room", skills) == (
        "skill fridge first : start at fridge .\nskill be quick : do not look twice .\nthe room"
    )


def test_the_review_message_tells_outcome_and_skills():
    text = review_message(family="look_at_obj_in_light", success=True, steps=7, titles=["fridge first", "be quick"])
    assert "family look_at_obj_in_light . success in 7 steps . skills fridge first , be quick ." in text
    assert "failure in 9 steps . skills none ." in review_message(family="f", success=False, steps=9, titles=[])
    assert all(tool in text for tool in ("propose_skill", "update_skill", "keep_skill"))


def test_written_turns_read_back_also_through_the_word_tokenizer(word_tokenizer):
    arguments = {"category": "general", "title": "fridge first", "principle": "start at fridge"}
    call = {"name": "keep_skill", "arguments": arguments}
    written = act_text("need mug .", "go to bed 1"), review_text("mug found .", call)
    decoded = tuple(word_tokenizer.decode(encode(word_tokenizer, text)) for text in written)
    for act, review in (written, decoded):
        act, review = parse_act(act, admissible=["go to bed 1"]), parse_review(review)
        assert (act.thought, act.action, act.flags) == ("need mug .", "go to bed 1", frozenset())
        assert review.call == ToolCall("keep_skill", arguments)
        assert (review.thought, review.flags) == ("mug found .", frozenset())
