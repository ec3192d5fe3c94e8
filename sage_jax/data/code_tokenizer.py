"""Builds the tokenizer of the small model that writes code: pairs of bytes, kept to the letter, no space in a word.

The word-level tokenizer of the other small models lowers case and forgets spaces, which code does not survive. Here a
word is the same token wherever it stands, so that copying one from an instruction into a call is copying a token.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sage_jax.data.word_tokenizer import ASSISTANT, END, PAD, TEMPLATE, UNK, USER
from sage_jax.errors import ConfigError

_PIECES = r"[A-Za-z_]+|[0-9]|\n *| +|[^\sA-Za-z0-9_]"  # a new line keeps its indent
_TAGS = ("<action>", "</action>")


def build_code_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of exactly `size` entries, trained on texts; any text is read back as it was written.

    Raises:
      ConfigError: the texts give fewer entries.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    split = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, UNK, END, USER, ASSISTANT]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(_TAGS),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in _TAGS])
    if tokenizer.get_vocab_size() != size:
        raise ConfigError(f"vocab_size={size}: the texts give {tokenizer.get_vocab_size()} entries; use fewer")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast
