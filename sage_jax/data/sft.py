"""Supervised conversations -> token sequences: what is imitated carries mask 1, everything else is context."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sage_jax.agents.chat import ChatTemplate
from sage_jax.data.packing import Sequence
from sage_jax.errors import DataError

# (role, text, trained): role "user" or "assistant"; only the assistant's texts may be trained on.
Message = tuple[str, str, bool]


def text_encoder(tokenizer: Any, cache_size: int = 65536) -> Callable[[str], tuple[int, ...]]:
    """Returns text -> ids without special tokens; the household repeats itself, so results are cached."""

    @functools.lru_cache(maxsize=cache_size)
    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return encode


def conversation_sequence(
    messages: Iterable[Message], encode: Callable[[str], tuple[int, ...]], template: ChatTemplate, number: int = 0
) -> Sequence:
    """Returns one conversation in the growing-context form that the agent meets when it acts.

    Args:
      messages: alternating, a user message first.
      encode: text -> ids.
      template: the tokenizer's chat template.
      number: sequence id.

    Raises:
      DataError: roles do not alternate, or a user's text is marked as trained.
    """
    ids: list[int] = []
    mask: list[float] = []
    expected = "user"
    for place, (role, text, trained) in enumerate(messages):
        if role != expected or (trained and role == "user"):
            raise DataError(f"message {place} is of role {role!r}, trained={trained}; expected role {expected!r}")
        if role == "user":
            new, weight = template.user(encode(text), first=not ids), 0.0
        else:
            new, weight = (*encode(text), template.stop_ids[0]), float(trained)
        ids += new
        mask += [weight] * len(new)
        expected = "assistant" if role == "user" else "user"
    zeros = np.zeros(len(ids), np.float32)
    return Sequence(np.array(ids, np.int32), np.array(mask, np.float32), zeros, zeros, number)
