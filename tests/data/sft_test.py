"""Conversations become sequences whose mask is on the trained texts and the stop tokens after them, nowhere else."""

import numpy as np
import pytest

from sage_jax.agents.chat import ChatTemplate
from sage_jax.data.sft import conversation_sequence, text_encoder
from sage_jax.errors import DataError

TALK = [
    ("user", "you see a mug 1.", False),
    ("assistant", "need mug .", True),
    ("user", "nothing happens.", False),
    ("assistant", "look", False),
    ("user", "you see a pan 1.", False),
    ("assistant", "see pan 1 .", True),
]


@pytest.fixture(scope="module")
def to_sequence(word_tokenizer):
    encode, template = text_encoder(word_tokenizer), ChatTemplate.from_tokenizer(word_tokenizer)
    return lambda messages, number=0: conversation_sequence(messages, encode, template, number)


def test_trained_tokens_are_the_trained_texts_and_their_stop_tokens(word_tokenizer, to_sequence):
    sequence = to_sequence(TALK, 7)
    tokens = word_tokenizer.convert_ids_to_tokens(sequence.ids)
    expected = (
        "<|user|> you see a mug 1 . <|end|> <|assistant|> need* mug* .* <|end|>* "
        "<|user|> nothing happens . <|end|> <|assistant|> look <|end|> "
        "<|user|> you see a pan 1 . <|end|> <|assistant|> see* pan* 1* .* <|end|>*"
    )
    marked = [token + "*" * int(trained) for token, trained in zip(tokens, sequence.mask, strict=True)]
    assert " ".join(marked) == expected
    assert sequence.sequence_id == 7
    assert (sequence.ids.dtype, sequence.mask.dtype) == (np.int32, np.float32)
    assert not sequence.advantages.any()
    assert not sequence.engine_logprobs.any()


def test_the_sequence_is_the_rendered_conversation(word_tokenizer, to_sequence):
    messages = [{"role": role, "content": text} for role, text, _ in TALK]
    whole = word_tokenizer.apply_chat_template(messages, tokenize=False)
    assert to_sequence(TALK).ids.tolist() == word_tokenizer.encode(whole, add_special_tokens=False)


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([TALK[1]], 0),
        ([TALK[0], TALK[0]], 1),
        ([*TALK, TALK[1]], 6),
        ([("user", "look", True)], 0),
        ([("system", "look", False)], 0),
    ],
)
def test_other_conversations_are_refused(to_sequence, messages, place):
    with pytest.raises(DataError, match=f"message {place} is of role"):
        to_sequence(messages)


def test_an_empty_conversation_is_refused(to_sequence):
    with pytest.raises(DataError, match="empty"):
        to_sequence([])


def test_texts_are_encoded_without_special_tokens_and_once(word_tokenizer):
    calls = []

    class Counting:
        def encode(self, text, *, add_special_tokens):
            calls.append((text, add_special_tokens))
            return word_tokenizer.encode(text, add_special_tokens=add_special_tokens)

    encode = text_encoder(Counting(), cache_size=2)
    assert encode("see pan 1") == encode("see pan 1") == tuple(word_tokenizer.encode("see pan 1"))
    assert calls == [("see pan 1", False)]
