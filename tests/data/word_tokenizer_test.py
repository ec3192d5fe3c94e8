"""The word tokenizer: its size, what it does to text, and that it is the same after saving and loading."""

import json
import random

import pytest
from transformers import AutoTokenizer

from sage_jax.agents.chat import review_text
from sage_jax.agents.parsing import parse_review
from sage_jax.data.base_corpus import household_trace
from sage_jax.data.word_tokenizer import TAGS, build_tokenizer, split_words
from sage_jax.errors import ConfigError
from sage_jax.skills import TOOLS, ToolCall

TALK = [
    {"role": "user", "content": "You see a mug 12, and a pan 1."},
    {"role": "assistant", "content": "<think> need mug . </think> <action> go to desk 1 </action>"},
    {"role": "user", "content": "Nothing happens."},
]


@pytest.fixture(scope="module")
def loaded(word_tokenizer, tmp_path_factory):
    """The tokenizer as others load it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    word_tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_the_vocabulary_has_exactly_the_size_asked_for():
    tokenizer = build_tokenizer(["mug", "desk", "mug"], 16)
    assert len(tokenizer) == tokenizer.vocab_size == 16
    assert sorted(tokenizer.get_vocab().values()) == list(range(16))
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    full = build_tokenizer(["mug", "desk"], 13)  # 5 special tokens, 6 tags, 2 words
    assert not any("reserved" in token for token in full.get_vocab())


def test_words_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="vocab_size=12.*13 words"):
        build_tokenizer(["mug", "desk"], 12)


def test_words_numbers_and_marks_are_tokens():
    tokenizer = build_tokenizer(split_words("go to the Mug 12 , . when_to_apply"), 32)
    text = "Go to the MUG 12, the mug.when_to_apply\n\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == split_words(text)
    assert split_words(text) == ["go", "to", "the", "mug", "12", ",", "the", "mug", ".", "when_to_apply"]
    assert tokenizer.encode("zebra", add_special_tokens=False) == [tokenizer.unk_token_id]


def test_tags_are_tokens_that_decoding_keeps_and_special_tokens_are_not(word_tokenizer):
    for tag in TAGS:
        (number,) = word_tokenizer.encode(tag, add_special_tokens=False)
        assert word_tokenizer.decode([number], skip_special_tokens=True) == tag
    ids = word_tokenizer.encode("<|user|> look <|end|>", add_special_tokens=False)
    assert word_tokenizer.decode(ids, skip_special_tokens=True) == "look"
    assert len(ids) == 3


def test_decoding_is_the_text_with_spaces_between_tokens(word_tokenizer):
    for seed in range(40):
        for _, text, _ in household_trace(random.Random(seed)):
            ids = word_tokenizer.encode(text, add_special_tokens=False)
            decoded = word_tokenizer.decode(ids)
            assert word_tokenizer.encode(decoded, add_special_tokens=False) == ids
            assert "".join(decoded.split()) == "".join(text.lower().split())


def test_a_saved_tokenizer_loads_as_itself(word_tokenizer, loaded):
    assert loaded.get_vocab() == word_tokenizer.get_vocab()
    assert (loaded.pad_token, loaded.unk_token, loaded.eos_token) == ("<|pad|>", "<|unk|>", "<|end|>")
    for seed in range(20):
        for _, text, _ in household_trace(random.Random(seed)):
            ids = word_tokenizer.encode(text, add_special_tokens=False)
            assert loaded.encode(text, add_special_tokens=False) == ids
            assert loaded.decode(ids) == word_tokenizer.decode(ids)
    for prompt in (False, True):
        whole = loaded.apply_chat_template(TALK, tokenize=False, add_generation_prompt=prompt)
        assert whole == word_tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=prompt)
        assert whole.endswith("<|assistant|>") is prompt
    assert whole.startswith("<|user|>You see a mug 12, and a pan 1.<|end|><|assistant|><think>")


@pytest.mark.parametrize("tool", list(TOOLS))
def test_tool_calls_survive_encoding_and_decoding(loaded, tool):
    texts = ["fridge first", "start at fridge , then go to desk 12", "to search", "found at fridge", "desk first"]
    arguments = dict(zip(TOOLS[tool], texts, strict=False))
    call = {"name": tool, "arguments": arguments}
    ids = loaded.encode(review_text("mug found .", call), add_special_tokens=False)
    assert loaded.unk_token_id not in ids
    parse = parse_review(loaded.decode(ids, skip_special_tokens=True))
    assert (parse.call, parse.flags) == (ToolCall(tool, arguments), frozenset())
    assert json.loads(loaded.decode(loaded.encode(json.dumps({"a": [1, 22]}), add_special_tokens=False)))
