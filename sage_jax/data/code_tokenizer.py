"""Builds the tokenizer of the small model that writes code: pairs of bytes, kept to the letter.

The word-level tokenizer of the other small models lowers case and forgets spaces, which code does not survive. Here a
word is the same token wherever it stands, and the space between two words is no token. So copying words from an
instruction into a call is copying neighbouring tokens, which is what induction heads (arXiv 2209.11895) do.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sage_jax.data.word_tokenizer import ASSISTANT, END, PAD, TEMPLATE, UNK, USER
from sage_jax.errors import ConfigError

_WORD = "[A-Za-z_]"
_BETWEEN = Regex(f"(?<={_WORD}) (?={_WORD})")  # no token: written again between two words
_PIECES = Regex(rf"{_WORD}+|[0-9]|\n *| +|[^\sA-Za-z0-9_]")  # a new line keeps its indent
_BYTE = Regex("[^!-~\u0120\u010a]")  # of a letter outside ASCII, as it is written in entries
_INSIDE = "##"  # begins an entry that goes on with a word
_TAGS = ("<action>", "</action>")


def build_code_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of exactly `size` entries, trained on texts; any text is read back as it was written.

    Raises:
      ConfigError: the texts give fewer entries.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNK, continuing_subword_prefix=_INSIDE))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_BETWEEN, behavior="removed"),
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False),
            pre_tokenizers.Split(_BYTE, behavior="isolated"),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(_INSIDE, cleanup=False),  # a space before all that does not go on with a word
            decoders.Fuse(),
            decoders.Replace(Regex(f"(?<!{_WORD}) | (?!{_WORD})"), ""),
            decoders.Replace(" ", "\u0120"),  # as bytes are written in entries
            decoders.ByteLevel(),
        ]
    )
    special = [PAD, UNK, END, USER, ASSISTANT]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(_TAGS),
        continuing_subword_prefix=_INSIDE,
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
