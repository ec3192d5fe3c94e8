"""Builds the word-level tokenizer of the small base model: a few hundred words, loadable by AutoTokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sage_jax.errors import ConfigError

PAD, UNK, END, USER, ASSISTANT = "<|pad|>", "<|unk|>", "<|end|>", "<|user|>", "<|assistant|>"
TAGS = ("<think>", "</think>", "<action>", "</action>", "<tool_call>", "</tool_call>")
_WORD = r"[a-z_]+|[0-9]+|[^\sa-z0-9_]"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|user|>' if message['role'] == 'user' else '<|assistant|>' }}{{ message['content'] }}{{ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def split_words(text: str) -> list[str]:
    """Splits text as the tokenizer does: lower case; words, numbers and single marks."""
    return re.findall(_WORD, text.lower())


def build_tokenizer(words: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of exactly `size` entries: special tokens, tags, `words` sorted, and reserved places.

    Raises:
      ConfigError: they are more than `size`.
    """
    special = [PAD, UNK, END, USER, ASSISTANT]
    vocabulary = [*special, *TAGS, *sorted(set(words) - set(special) - set(TAGS))]
    if len(vocabulary) > size:
        raise ConfigError(f"vocab_size={size}: {len(vocabulary)} words must fit; use {len(vocabulary)} or more")
    vocabulary += [f"<|reserved_{i}|>" for i in range(size - len(vocabulary))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNK))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)  # joins words with spaces
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNK, eos_token=END)
    fast.chat_template = TEMPLATE
    return fast
