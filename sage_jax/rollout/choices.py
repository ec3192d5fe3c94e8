"""Sampling among given token sequences: a trie that says which ids may come next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sage_jax.errors import EngineError


class ChoiceTrie:
    """The choices of one request. No choice begins another (SamplingParams checks it)."""

    def __init__(self, choices: Iterable[Sequence[int]]):
        self._root: dict[int, dict] = {}
        for choice in choices:
            node = self._root
            for token in choice:
                node = node.setdefault(int(token), {})

    def allowed(self, prefix: Sequence[int]) -> tuple[int, ...]:
        """Returns the ids that may follow `prefix`; none when it is a complete choice.

        Raises:
          EngineError: `prefix` begins no choice.
        """
        node = self._root
        for token in prefix:
            if token not in node:
                raise EngineError(
                    f"token {token} of {tuple(prefix)} leaves the given choices: the engine's mask is wrong"
                )
            node = node[token]
        return tuple(node)


def fill_mask(mask: np.ndarray, allowed: Sequence[int]) -> None:
    """Sets a mask row [V] to True exactly at the allowed ids."""
    mask[:] = False
    mask[list(allowed)] = True
