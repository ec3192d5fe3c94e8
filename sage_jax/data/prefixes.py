"""Prefix sharing: sequences that begin alike are packed as one tree, whose stem is computed once.

Turn-level samples of an episode (`context="steps"`) repeat the instructions and much of the history; rollouts of a
group repeat the task. A tree lies in a row depth first: behind a stem come its branches one after the other, each
token at the position it has in its own sequence, and a token is seen by the tokens of its own subtree only. That makes
every hidden state the one that its sequence has alone, so loss and gradient are the same, at the price of the distinct
tokens.

Two things limit sharing, both so that each trained token keeps one place, with the token before it directly in front:
a token that both sequences train on is not shared, and a branch begins with a token that is not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from sage_jax.data.packing import PackedBatch, Piece, Sequence, check_fit, pack_pieces


def pack_shared(sequences: SequenceOf[Sequence], *, row_length: int, row_multiple: int = 1) -> PackedBatch:
    """Returns the sequences packed as `packing.pack` does, with common prefixes laid down once.

    Raises:
      ConfigError: row_length or row_multiple is not positive.
      DataError: no sequences, or sequences longer than a row.
    """
    check_fit(sequences, row_length)
    return pack_pieces(
        share_prefixes(sequences, row_length), row_length=row_length, row_multiple=row_multiple, shared=True
    )


def share_prefixes(sequences: SequenceOf[Sequence], limit: int) -> list[Piece]:
    """Returns trees of at most `limit` tokens that hold all sequences.

    In order of their ids each sequence shares most with the one before it, so one pass finds the trees. A tree is
    closed when the next sequence shares nothing with it or would not fit.
    """
    # Big-endian bytes sort like the ids themselves.
    order = sorted(range(len(sequences)), key=lambda index: sequences[index].ids.astype(">u4").tobytes())
    pieces, tree = [], _Tree()
    for index in order:
        sequence = sequences[index]
        shared = tree.shared(sequence)
        if not shared or tree.length + len(sequence.ids) - shared > limit:
            if tree.length:
                pieces.append(tree.close())
            tree, shared = _Tree(), 0
        tree.add(sequence, shared)
    return [*pieces, tree.close()]


class _Tree:
    """A tree under construction; `_path` holds the places of the last sequence's tokens."""

    def __init__(self) -> None:
        self.length = 0
        self._path = np.zeros(0, np.int64)
        self._arrays: dict[str, np.ndarray] = {}

    def shared(self, sequence: Sequence) -> int:
        """Returns how many of the sequence's first tokens can be the last one's."""
        count = min(len(self._path), len(sequence.ids))
        if not count:
            return 0
        path, trained = self._path[:count], sequence.mask[:count] > 0
        follows = np.diff(path, prepend=path[0] - 1) == 1
        fits = self._arrays["ids"][path] == sequence.ids[:count]
        fits &= ~trained | ((self._arrays["mask"][path] == 0) & follows)
        shared = count if fits.all() else int(np.argmin(fits))
        while shared < len(sequence.ids) and sequence.mask[shared]:
            shared -= 1
        return shared

    def add(self, sequence: Sequence, shared: int) -> None:
        """Lays the sequence down behind the stem that it shares."""
        piece = Piece.of(sequence)
        trained = np.flatnonzero(sequence.mask[:shared])
        for name in ("mask", "advantages", "engine_logprobs", "sequence_ids", "stream_ids"):
            if len(trained):  # the stem's token is context for the others and a target here
                self._arrays[name][self._path[trained]] = getattr(piece, name)[trained]
        if self.length:
            self._arrays["ends"][self._path[shared:]] = self.length
        for name, array in piece._asdict().items():
            before = self._arrays.get(name, np.zeros(0, array.dtype))
            self._arrays[name] = np.concatenate([before, array[shared:]])
        added = len(sequence.ids) - shared
        self._path = np.concatenate([self._path[:shared], np.arange(self.length, self.length + added)])
        self.length += added

    def close(self) -> Piece:
        """Returns the tree."""
        self._arrays["ends"][self._path] = self.length
        return Piece(**self._arrays)
