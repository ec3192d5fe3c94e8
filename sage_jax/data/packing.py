"""Packing: trajectories -> token sequences -> rows [N, T] -> micro-batches of fixed shape.

The one convention: **index t of `mask`, `advantages`, `engine_logprobs` and `old_logprobs` speaks of the target token
ids[t], which the model predicts from position t - 1 of the same sequence.** The first token of a sequence has no
position before it and can never be trained on.

Rows hold several sequences back to back (segment_ids 1, 2, ...; 0 is padding; positions restart in each), and nothing
is ever cut or dropped. Only the trained tokens, a small part of an agent's context, go through the vocabulary head:
`micro_batches` gathers them on the host, where counting them costs nothing.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sage_jax.data.truncation import KeptLevel, kept_mass
from sage_jax.errors import ConfigError, DataError
from sage_jax.types import Trajectory, Turn


@dataclasses.dataclass(frozen=True)
class Sequence:
    """One token sequence with what the loss needs to know about each of its tokens. All arrays have length L.

    Attributes:
      ids: token ids.
      mask: 1 for target tokens that are trained on; 0 for the first token.
      advantages: of each target token; read where `mask` is 1.
      engine_logprobs: of each target token as the engine reported it; read where `mask` is 1.
      sequence_id: tokens of one id form one unit of the `sequence_mean` aggregation; several sequences may share it.
      stream_ids: stream of each token, an index into the caller's list of streams.
    """

    ids: Int[np.ndarray, " L"]
    mask: Float[np.ndarray, " L"]
    advantages: Float[np.ndarray, " L"]
    engine_logprobs: Float[np.ndarray, " L"]
    sequence_id: int = 0
    stream_ids: Int[np.ndarray, " L"] | None = None

    def __post_init__(self) -> None:
        for name in ("mask", "advantages", "engine_logprobs", "stream_ids"):
            array = getattr(self, name)
            if array is not None and len(array) != len(self.ids):
                raise DataError(f"sequence {self.sequence_id}: {name} has {len(array)} values, ids {len(self.ids)}")
        if not len(self.ids):
            raise DataError(f"sequence {self.sequence_id} is empty; leave it out")
        if self.mask[0]:
            raise DataError(
                f"sequence {self.sequence_id}: mask[0] is {self.mask[0]}, but nothing predicts the first token; "
                "begin the sequence with a prompt token of mask 0"
            )


class Piece(NamedTuple):
    """What lies in a row as one segment: a sequence, or a tree of sequences that share prefixes. Arrays [L].

    Attributes:
      ids, mask, advantages, engine_logprobs, stream_ids: as in `Sequence`.
      positions: place of each token in its own sequence.
      sequence_ids: `Sequence.sequence_id` of each token.
      ends: place in the piece behind the last token that sees this one.
    """

    ids: Int[np.ndarray, " L"]
    positions: Int[np.ndarray, " L"]
    mask: Float[np.ndarray, " L"]
    advantages: Float[np.ndarray, " L"]
    engine_logprobs: Float[np.ndarray, " L"]
    sequence_ids: Int[np.ndarray, " L"]
    stream_ids: Int[np.ndarray, " L"]
    ends: Int[np.ndarray, " L"]

    @classmethod
    def of(cls, sequence: Sequence) -> Piece:
        """Returns one sequence as a piece."""
        length = len(sequence.ids)
        streams = np.zeros(length, np.int32) if sequence.stream_ids is None else sequence.stream_ids
        return cls(
            ids=sequence.ids,
            positions=np.arange(length),
            mask=sequence.mask,
            advantages=sequence.advantages,
            engine_logprobs=sequence.engine_logprobs,
            sequence_ids=np.full(length, sequence.sequence_id),
            stream_ids=streams,
            ends=np.full(length, length),
        )


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """Packed rows; see the module docstring for the target convention. NumPy arrays [N, T].

    Attributes:
      ids: int32 token ids, 0 in padding.
      positions: int32, restarting at 0 in each segment.
      segment_ids: int32, 1-based in each row, 0 in padding.
      mask: float32, 1 for trained target tokens.
      advantages: float32.
      engine_logprobs: float32.
      sequence_ids: int32, `Sequence.sequence_id`; -1 in padding.
      stream_ids: int32; -1 in padding.
      ends: int32, place in the row behind the last token that sees this one; None when sequences share no prefixes, so
        that the segment ids say it all.
    """

    ids: Int[np.ndarray, "N T"]
    positions: Int[np.ndarray, "N T"]
    segment_ids: Int[np.ndarray, "N T"]
    mask: Float[np.ndarray, "N T"]
    advantages: Float[np.ndarray, "N T"]
    engine_logprobs: Float[np.ndarray, "N T"]
    sequence_ids: Int[np.ndarray, "N T"]
    stream_ids: Int[np.ndarray, "N T"]
    ends: Int[np.ndarray, "N T"] | None = None

    @property
    def fill(self) -> float:
        """Share of the row places that hold a token."""
        return float((self.segment_ids > 0).mean())

    def rows(self, index: SequenceOf[int] | np.ndarray | slice) -> PackedBatch:
        """Returns the chosen rows."""
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return PackedBatch(**{name: None if array is None else array[index] for name, array in arrays.items()})


class MicroBatches(NamedTuple):
    """M micro-batches of R rows and C places for trained tokens (a pytree, the input of an update step).

    NumPy arrays as built, device arrays once an update has them.

    Attributes:
      ids, positions, segment_ids: int32 [M, R, T].
      source: int32 [M, C], flat index in [0, R * T) of the hidden state that predicts the token. For a mesh the C
        places are equal runs, one for each device's piece of the rows, each filled from its start.
      targets: int32 [M, C], the token.
      mask: float32 [M, C], 0 for places that hold no token.
      advantages, engine_logprobs: float32 [M, C].
      sequence_ids: int32 [M, C], renumbered 0, 1, ... over the sequences that have trained tokens.
      old_logprobs: float32 [M, C], or None for strictly on-policy updates.
      ends: int32 [M, R, T], `PackedBatch.ends`, or None.
    """

    ids: Int[Any, "M R T"]
    positions: Int[Any, "M R T"]
    segment_ids: Int[Any, "M R T"]
    source: Int[Any, "M C"]
    targets: Int[Any, "M C"]
    mask: Float[Any, "M C"]
    advantages: Float[Any, "M C"]
    engine_logprobs: Float[Any, "M C"]
    sequence_ids: Int[Any, "M C"]
    old_logprobs: Float[Any, "M C"] | None = None
    ends: Int[Any, "M R T"] | None = None


def trajectory_sequences(
    trajectory: Trajectory,
    *,
    first_id: int = 0,
    per: Literal["context", "trajectory"] = "context",
    streams: Mapping[str, int] | None = None,
    kept: KeptLevel | None = None,
) -> list[Sequence]:
    """Returns the token sequences of one trajectory, one for each context.

    A turn with `starts_context=False` continues the sequence of the turn before. Prompt ids have mask 0; output ids
    mask 1, or 0 when the turn's advantage is None. Contexts without a trained turn are left out.

    Args:
      trajectory: turns with their advantages.
      first_id: sequence_id of the first sequence.
      per: "context" numbers each context; "trajectory" gives all of them one id, so that `sequence_mean` averages
        over the tokens of the whole trajectory.
      streams: number of each stream name; default: all 0.
      kept: multiply advantages by `truncation.kept_mass`, of each token or over each sequence's trained ones.

    Raises:
      DataError: the first turn does not start a context, or a turn is inconsistent.
    """
    if per not in ("context", "trajectory"):
        raise ConfigError(f"per={per!r} is unknown; use 'context' or 'trajectory'")
    contexts: list[list[Turn]] = []
    for position, turn in enumerate(trajectory.turns):
        where = f"task {trajectory.task.id}, turn {position}"
        if len(turn.logprobs) != len(turn.output_ids):
            raise DataError(f"{where}: {len(turn.logprobs)} logprobs for {len(turn.output_ids)} output ids")
        if turn.starts_context:
            contexts.append([])
        elif not contexts:
            raise DataError(f"{where}: the first turn of a trajectory must have starts_context=True")
        contexts[-1].append(turn)
    trained = [turns for turns in contexts if any(turn.advantage is not None and turn.output_ids for turn in turns)]
    numbers = range(first_id, first_id + len(trained)) if per == "context" else [first_id] * len(trained)
    return [_join_turns(turns, number, streams, kept) for turns, number in zip(trained, numbers, strict=True)]


def trajectories_to_sequences(
    trajectories: Iterable[Trajectory],
    *,
    per: Literal["context", "trajectory"] = "context",
    streams: Mapping[str, int] | None = None,
    kept: KeptLevel | None = None,
) -> list[Sequence]:
    """Returns the sequences of all trajectories with sequence ids that do not collide (see `trajectory_sequences`)."""
    result: list[Sequence] = []
    for trajectory in trajectories:
        first_id = result[-1].sequence_id + 1 if result else 0
        result += trajectory_sequences(trajectory, first_id=first_id, per=per, streams=streams, kept=kept)
    return result


def pack(sequences: SequenceOf[Sequence], *, row_length: int, row_multiple: int = 1) -> PackedBatch:
    """Returns the sequences packed into rows by first-fit decreasing.

    Longest first, ties in the order given, each into the first row with room: at most 11/9 of the rows of an optimal
    packing, and the same rows for the same input.

    Args:
      sequences: at least one; each stays whole.
      row_length: T.
      row_multiple: rows are padded with empty ones to a multiple of this, so that few shapes are compiled.

    Raises:
      ConfigError: row_length or row_multiple is not positive.
      DataError: no sequences, or sequences longer than a row (none is cut or dropped).
    """
    check_fit(sequences, row_length)
    return pack_pieces([Piece.of(sequence) for sequence in sequences], row_length=row_length, row_multiple=row_multiple)


def best_row_length(lengths: SequenceOf[int], choices: SequenceOf[int]) -> int:
    """Returns the row length of `choices` that packs sequences of such lengths into the fewest places.

    Meant for choosing `row_length` by the lengths that a run is known to have: each row length is a program of its
    own. Where attention skips the tiles between sequences ("tiled"), a longer row costs memory and no time.

    Args:
      lengths: tokens of each sequence.
      choices: row lengths; those shorter than the longest sequence are passed over.

    Raises:
      ConfigError: no choice holds the longest sequence.
    """
    fitting = [choice for choice in choices if choice >= max(lengths)]
    if not fitting:
        raise ConfigError(f"row_length: none of {list(choices)} holds a sequence of {max(lengths)} tokens")
    return min(fitting, key=lambda choice: (choice * len({row for _, row in _first_fit(lengths, choice)}), choice))


def _first_fit(lengths: SequenceOf[int], row_length: int) -> list[tuple[int, int]]:
    """Returns (index of the sequence, its row) longest first, ties in the order given, each in the first with room."""
    used = np.zeros(len(lengths), np.int64)
    placed = []
    for index in np.argsort(-np.asarray(lengths), kind="stable"):
        # Rows not yet begun are empty, so argmax always finds one.
        row = int(np.argmax(used + lengths[index] <= row_length))
        used[row] += lengths[index]
        placed.append((int(index), row))
    return placed


def check_fit(sequences: SequenceOf[Sequence], row_length: int) -> None:
    """Raises DataError when there are no sequences, or when some are longer than a row (none is cut or dropped)."""
    if not sequences:
        raise DataError("nothing to pack: the batch has no sequence with a trained token")
    lengths = np.array([len(sequence.ids) for sequence in sequences])
    if lengths.max() > row_length:
        raise DataError(
            f"{int((lengths > row_length).sum())} of {len(lengths)} sequences are longer than row_length={row_length} "
            f"(longest: {lengths.max()} tokens); raise row_length or shorten the contexts"
        )


def pack_pieces(
    pieces: SequenceOf[Piece], *, row_length: int, row_multiple: int = 1, shared: bool = False
) -> PackedBatch:
    """Returns pieces that fit a row packed as `pack` does; with `shared` the batch says what sees what.

    Raises:
      ConfigError: row_length or row_multiple is not positive.
    """
    for name, value in {"row_length": row_length, "row_multiple": row_multiple}.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    places = []
    used, segments = collections.Counter(), collections.Counter()
    for index, row in _first_fit([len(piece.ids) for piece in pieces], row_length):
        segments[row] += 1
        places.append((index, row, used[row], segments[row]))
        used[row] += len(pieces[index].ids)
    row_count = len(segments)
    rows = row_count + -row_count % row_multiple
    batch = _empty_batch(rows, row_length, shared)
    for index, row, start, segment in places:
        _place(batch, pieces[index], row, start, segment)
    return batch


def micro_batches(
    batch: PackedBatch,
    rows_per_micro: int,
    *,
    capacity_multiple: int = 256,
    min_micro: int = 1,
    shards: tuple[int, int] = (1, 1),
    old_logprobs: Float[np.ndarray, "N T"] | None = None,
) -> MicroBatches:
    """Returns the rows as micro-batches, with the trained tokens of each gathered into C places.

    C is the largest count of a micro-batch rounded up to capacity_multiple * (1, 2, 3, 4, 6, 8, 12, ...), and the
    number of micro-batches is rounded up in the same way (an empty one is skipped by the update), so that a run meets
    few shapes and compiles few programs. With shards, each piece of the rows has C / pieces places for its own tokens.

    Args:
      batch: packed rows.
      rows_per_micro: R; rows are padded with empty ones where they do not divide.
      capacity_multiple: unit of C, in tokens.
      min_micro: lower bound of M.
      shards: pieces that a mesh cuts the rows and the tokens of a row into (`models.sharding.token_shards`).
      old_logprobs: log-probabilities under the policy that sampled, aligned with `batch.ids`, for several epochs.

    Raises:
      ConfigError: a size is not positive.
    """
    for name, value in {"rows_per_micro": rows_per_micro, "capacity_multiple": capacity_multiple}.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    places = _shard_places(rows_per_micro, batch.ids.shape[1], shards)
    count = round_up(max(min_micro, -(-len(batch.ids) // rows_per_micro)))
    missing = count * rows_per_micro - len(batch.ids)

    def split(array: np.ndarray) -> np.ndarray:
        return np.pad(array, ((0, missing), (0, 0))).reshape(count, rows_per_micro, -1)

    # At the place of the hidden state, which is the one before the target's.
    trained = np.roll(split(batch.mask) > 0, -1, axis=2).reshape(count, -1)[:, places]
    tokens = trained.sum(axis=2)
    unit = -(-capacity_multiple // len(places))
    capacity = unit * round_up(-(-max(1, int(tokens.max())) // unit))
    # Trained places first, in their order; the rest are cut or masked.
    order = np.argsort(~trained, axis=2, kind="stable")[:, :, :capacity]
    order = np.pad(order, ((0, 0), (0, 0), (0, capacity - order.shape[2])))
    live = (np.arange(capacity) < tokens[:, :, None]).reshape(count, -1)
    source = np.take_along_axis(places[None], order, axis=2).reshape(count, -1)

    def gather(array: np.ndarray) -> np.ndarray:
        values = np.take_along_axis(split(array).reshape(count, -1), np.where(live, source + 1, 0), axis=1)
        return np.where(live, values, 0).astype(array.dtype)

    numbers = np.zeros(live.shape, np.int32)
    if live.any():
        numbers[live] = np.unique(gather(batch.sequence_ids)[live], return_inverse=True)[1]
    return MicroBatches(
        ids=split(batch.ids),
        positions=split(batch.positions),
        segment_ids=split(batch.segment_ids),
        source=np.where(live, source, 0).astype(np.int32),
        targets=gather(batch.ids),
        mask=live.astype(np.float32),
        advantages=gather(batch.advantages),
        engine_logprobs=gather(batch.engine_logprobs),
        sequence_ids=numbers,
        old_logprobs=None if old_logprobs is None else gather(np.asarray(old_logprobs, np.float32)),
        ends=None if batch.ends is None else _split_ends(batch.ends, count, rows_per_micro),
    )


def _split_ends(ends: Int[np.ndarray, "N T"], count: int, rows: int) -> Int[np.ndarray, "M R T"]:
    """Returns the ends by micro-batch; the tokens of rows of padding see each other."""
    length = ends.shape[1]
    padded = np.pad(ends, ((0, count * rows - len(ends)), (0, 0)), constant_values=length)
    return padded.reshape(count, rows, length)


def _shard_places(rows: int, length: int, shards: tuple[int, int]) -> Int[np.ndarray, "G P"]:
    """Returns the flat indices into [rows, length] of each piece's places, piece by piece.

    Raises:
      ConfigError: the pieces would not be of one size.
    """
    row_shards, length_shards = shards
    if rows % row_shards:
        raise ConfigError(f"rows_per_micro={rows}: must be a multiple of the {row_shards} pieces of the rows")
    if length % length_shards:
        raise ConfigError(f"row_length={length}: must be a multiple of the mesh's sequence:{length_shards}")
    places = np.arange(rows * length).reshape(row_shards, rows // row_shards, length_shards, length // length_shards)
    return places.transpose(0, 2, 1, 3).reshape(row_shards * length_shards, -1)


def round_up(count: int) -> int:
    """Returns the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is at least `count`."""
    power = 1
    while power < count:
        power *= 2
    return power // 4 * 3 if power >= 4 and power // 4 * 3 >= count else power


def _join_turns(
    turns: list[Turn], sequence_id: int, streams: Mapping[str, int] | None, kept: KeptLevel | None
) -> Sequence:
    """Returns one context's turns as one sequence."""
    ids, mask, advantages, logprobs, stream_ids = [], [], [], [], []
    for turn in turns:
        before, after = len(turn.prompt_ids), len(turn.output_ids)
        trained = turn.advantage is not None
        ids += [*turn.prompt_ids, *turn.output_ids]
        mask += [0.0] * before + [float(trained)] * after
        advantages += [0.0] * before + [turn.advantage if trained else 0.0] * after
        logprobs += [0.0] * before + list(turn.logprobs)
        stream_ids += [streams[turn.stream] if streams else 0] * (before + after)
    return Sequence(
        ids=np.array(ids, np.int32),
        mask=np.array(mask, np.float32),
        advantages=np.array(advantages, np.float32) * (1.0 if kept is None else kept_mass(turns, kept)),
        engine_logprobs=np.array(logprobs, np.float32),
        sequence_id=sequence_id,
        stream_ids=np.array(stream_ids, np.int32),
    )


def _empty_batch(rows: int, row_length: int, shared: bool) -> PackedBatch:
    """Returns a batch of padding."""
    shape = (rows, row_length)
    integers = {name: np.zeros(shape, np.int32) for name in ("ids", "positions", "segment_ids")}
    floats = {name: np.zeros(shape, np.float32) for name in ("mask", "advantages", "engine_logprobs")}
    labels = {name: np.full(shape, -1, np.int32) for name in ("sequence_ids", "stream_ids")}
    ends = np.full(shape, row_length, np.int32) if shared else None
    return PackedBatch(**integers, **floats, **labels, ends=ends)


def _place(batch: PackedBatch, piece: Piece, row: int, start: int, segment: int) -> None:
    """Writes a piece into its place of the batch under construction."""
    place = (row, slice(start, start + len(piece.ids)))
    trained = piece.mask > 0
    batch.ids[place] = piece.ids
    batch.positions[place] = piece.positions
    batch.segment_ids[place] = segment
    batch.mask[place] = piece.mask
    # What stands at masked places is never read; zeros keep a stray NaN out of the arrays.
    batch.advantages[place] = np.where(trained, piece.advantages, 0.0)
    batch.engine_logprobs[place] = np.where(trained, piece.engine_logprobs, 0.0)
    batch.sequence_ids[place] = piece.sequence_ids
    batch.stream_ids[place] = piece.stream_ids
    if batch.ends is not None:
        batch.ends[place] = piece.ends + start
