"""Packing: the target convention by hand, nothing lost, few shapes, turns to sequences, gathered tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.data.packing import (
    Sequence,
    best_row_length,
    micro_batches,
    pack,
    round_up,
    trajectories_to_sequences,
    trajectory_sequences,
)
from sage_jax.errors import ConfigError, DataError
from sage_jax.types import RewardResult, Task, Trajectory, Turn


def sequence(ids, mask, *, number=0, stream=0):
    """Returns a sequence whose per-token values can be told apart: advantage 10 * id, log-probability -id."""
    ids = np.array(ids, np.int32)
    return Sequence(ids, np.array(mask, np.float32), ids * 10.0, -ids * 1.0, number, np.full(len(ids), stream))


def turn(prompt, output, *, starts=False, advantage=1.0, stream="act"):
    logprobs = tuple(-float(token) for token in output)
    return Turn(stream, tuple(prompt), tuple(output), logprobs, starts, advantage=advantage)


def trajectory(*turns):
    return Trajectory(Task("t1", "toy", "train", "pick"), "g", 0, turns, RewardResult(1.0))


def test_rows_by_hand():
    # Lengths 3, 2, 4 into rows of 5, longest first: row 0 takes 4, row 1 takes 3 and then 2.
    batch = pack(
        [
            sequence([5, 6, 7], [0, 1, 1], number=3),
            sequence([8, 9], [0, 1], number=4),
            sequence([1, 2, 3, 4], [0, 0, 1, 1]),
        ],
        row_length=5,
        row_multiple=2,
    )
    np.testing.assert_array_equal(batch.ids, [[1, 2, 3, 4, 0], [5, 6, 7, 8, 9]])
    np.testing.assert_array_equal(batch.positions, [[0, 1, 2, 3, 0], [0, 1, 2, 0, 1]])
    np.testing.assert_array_equal(batch.segment_ids, [[1, 1, 1, 1, 0], [1, 1, 1, 2, 2]])
    np.testing.assert_array_equal(batch.mask, [[0, 0, 1, 1, 0], [0, 1, 1, 0, 1]])
    np.testing.assert_array_equal(batch.advantages, [[0, 0, 30, 40, 0], [0, 60, 70, 0, 90]])
    np.testing.assert_array_equal(batch.engine_logprobs, [[0, 0, -3, -4, 0], [0, -6, -7, 0, -9]])
    np.testing.assert_array_equal(batch.sequence_ids, [[0, 0, 0, 0, -1], [3, 3, 3, 4, 4]])
    assert batch.fill == 0.9


def test_a_trained_token_is_predicted_from_the_place_before_it():
    # Row 0 is [1 2 3 4 .], row 1 is [5 6 7 8 9]; as one micro-batch its flat places are 0..4 and 5..9.
    batch = pack(
        [
            sequence([5, 6, 7], [0, 1, 1], number=3),
            sequence([8, 9], [0, 1], number=4),
            sequence([1, 2, 3, 4], [0, 0, 1, 1]),
        ],
        row_length=5,
    )
    micro = micro_batches(batch, 2, capacity_multiple=4)
    assert micro.source.shape == (1, 8)
    # Targets 3, 4 stand at 2, 3; 6, 7 at 6, 7; 9 at 9. Each source is one less.
    np.testing.assert_array_equal(micro.targets[0], [3, 4, 6, 7, 9, 0, 0, 0])
    np.testing.assert_array_equal(micro.source[0], [1, 2, 5, 6, 8, 0, 0, 0])
    np.testing.assert_array_equal(micro.mask[0], [1, 1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(micro.advantages[0], [30, 40, 60, 70, 90, 0, 0, 0])
    np.testing.assert_array_equal(micro.engine_logprobs[0], [-3, -4, -6, -7, -9, 0, 0, 0])
    # Sequences 0, 3, 4 are renumbered.
    np.testing.assert_array_equal(micro.sequence_ids[0], [0, 0, 1, 1, 2, 0, 0, 0])
    np.testing.assert_array_equal(batch.ids.reshape(-1)[micro.source[0, :5]], [2, 3, 5, 6, 8])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    multiple=st.integers(1, 4),
    rows_per_micro=st.integers(1, 5),
    seed=st.integers(0, 999),
)
def test_nothing_is_lost_or_mixed(lengths, multiple, rows_per_micro, seed):
    rng = np.random.default_rng(seed)
    sequences = []
    for number, length in enumerate(lengths):
        mask = rng.integers(0, 2, length)
        mask[0] = 0
        sequences.append(sequence(rng.integers(1, 99, length), mask, number=number))
    batch = pack(sequences, row_length=9, row_multiple=multiple)
    assert len(batch.ids) % multiple == 0
    found = {}
    for row in range(len(batch.ids)):
        for segment in range(1, batch.segment_ids[row].max() + 1):
            place = np.flatnonzero(batch.segment_ids[row] == segment)
            assert (np.diff(place) == 1).all()
            np.testing.assert_array_equal(batch.positions[row, place], np.arange(len(place)))
            (number,) = set(batch.sequence_ids[row, place])
            found[number] = batch.ids[row, place].tolist(), batch.mask[row, place].tolist()
    assert found == {item.sequence_id: (item.ids.tolist(), item.mask.tolist()) for item in sequences}

    micro = micro_batches(batch, rows_per_micro, capacity_multiple=3)
    got, flat = [], micro.ids.reshape(len(micro.ids), -1)
    for part in range(len(micro.ids)):
        for place in np.flatnonzero(micro.mask[part]):
            before = flat[part, micro.source[part, place]]
            got.append((before, micro.targets[part, place], micro.advantages[part, place]))
    want = [(item.ids[t - 1], item.ids[t], item.advantages[t]) for item in sequences for t in np.flatnonzero(item.mask)]
    assert sorted(got) == sorted(want)


def test_first_fit_decreasing_uses_few_rows():
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 300, 200)
    sequences = [sequence(np.ones(length), np.zeros(length), number=i) for i, length in enumerate(lengths)]
    batch = pack(sequences, row_length=512)
    assert len(batch.ids) <= 11 / 9 * np.ceil(lengths.sum() / 512) + 1
    assert batch.fill > 0.9


def test_the_best_row_length_by_hand():
    # 3 rows of 3000 are 9000 places, and 2 rows of 3456 (3000 + 400, 2133 + 1266) are 6912.
    assert best_row_length([400, 1266, 2133, 3000], [3456, 3000]) == 3456
    assert best_row_length([8, 8, 8, 8], [16, 8]) == 8  # the shorter of two that fill their rows
    assert best_row_length([9], [8, 16, 64]) == 16
    with pytest.raises(ConfigError, match=r"row_length: none of \[8, 16\] holds a sequence of 17 tokens"):
        best_row_length([3, 17], [8, 16])


def test_the_same_input_gives_the_same_rows():
    sequences = [sequence([1, 2], [0, 1], number=i) for i in range(5)]
    first, second = (pack(sequences, row_length=4) for _ in range(2))
    np.testing.assert_array_equal(first.sequence_ids, second.sequence_ids)
    assert first.sequence_ids[:, 0].tolist() == [0, 2, 4]


def test_batches_of_many_sizes_share_few_shapes():
    shapes = set()
    for count in range(1, 60):
        sequences = [sequence([1, 2, 3], [0, 1, 1], number=i) for i in range(count)]
        micro = micro_batches(pack(sequences, row_length=6), 2, capacity_multiple=4)
        shapes.add((micro.ids.shape, micro.source.shape))
    assert {shape[0][1:] for shape in shapes} == {(2, 6)}
    assert {shape[0][0] for shape in shapes} == {1, 2, 3, 4, 6, 8, 12, 16}
    assert len(shapes) <= 9
    assert [round_up(n) for n in (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25)] == [1, 2, 3, 4, 6, 6, 8, 12, 16, 24, 32]


def test_old_logprobs_are_gathered_like_the_rest():
    batch = pack([sequence([5, 6, 7], [0, 1, 1])], row_length=4)
    micro = micro_batches(batch, 1, capacity_multiple=2, old_logprobs=np.array([[0.1, 0.2, 0.3, 0.4]]))
    np.testing.assert_allclose(micro.old_logprobs, [[0.2, 0.3]])
    assert micro_batches(batch, 1).old_logprobs is None


def test_turns_that_continue_form_one_sequence():
    (only,) = trajectory_sequences(
        trajectory(
            turn([1, 2], [3], starts=True, advantage=0.5),
            turn([4], [5, 6], advantage=None),
            turn([7], [8], advantage=-2.0, stream="review"),
        ),
        streams={"act": 0, "review": 1},
    )
    assert only.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert only.mask.tolist() == [0, 0, 1, 0, 0, 0, 0, 1]
    assert only.advantages.tolist() == [0, 0, 0.5, 0, 0, 0, 0, -2]
    assert only.engine_logprobs.tolist() == [0, 0, -3, 0, -5, -6, 0, -8]
    assert only.stream_ids.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_step_wise_prompts_form_sequences_of_their_own():
    steps = trajectory(
        turn([1, 2], [3], starts=True),
        turn([1, 4], [5], starts=True, advantage=None),
        turn([1, 6], [7, 8], starts=True),
    )
    sequences = trajectories_to_sequences([steps, steps])
    # The turn without advantage is a context of its own: left out, not packed for nothing.
    assert [item.ids.tolist() for item in sequences] == [[1, 2, 3], [1, 6, 7, 8]] * 2
    assert [item.sequence_id for item in sequences] == [0, 1, 2, 3]
    whole = trajectories_to_sequences([steps, steps], per="trajectory")
    assert [item.sequence_id for item in whole] == [0, 0, 1, 1]


def test_a_zero_advantage_is_trained_and_none_is_not():
    zero = trajectory_sequences(trajectory(turn([1], [2], starts=True, advantage=0.0)))
    assert zero[0].mask.tolist() == [0, 1]
    assert trajectory_sequences(trajectory(turn([1], [2], starts=True, advantage=None))) == []


def test_refusals():
    fits, long = sequence([1, 2], [0, 1]), sequence([1, 2, 3, 4], [0, 1, 1, 1])
    with pytest.raises(DataError, match=r"2 of 3 sequences are longer than row_length=3 \(longest: 4"):
        pack([long, fits, long], row_length=3)
    with pytest.raises(DataError, match="nothing to pack"):
        pack([], row_length=3)
    with pytest.raises(ConfigError, match="row_multiple=0"):
        pack([fits], row_length=3, row_multiple=0)
    with pytest.raises(ConfigError, match="rows_per_micro=0"):
        micro_batches(pack([fits], row_length=3), 0)
    with pytest.raises(DataError, match="nothing predicts the first token"):
        sequence([1, 2], [1, 1])
    with pytest.raises(DataError, match="mask has 3 values, ids 2"):
        sequence([1, 2], [0, 1, 1])
    with pytest.raises(DataError, match="turn 0.*starts_context=True"):
        trajectory_sequences(trajectory(turn([1], [2])))
    broken = Turn("act", (1,), (2, 3), (-0.5,), True, advantage=1.0)
    with pytest.raises(DataError, match="task t1, turn 0: 1 logprobs for 2 output ids"):
        trajectory_sequences(trajectory(broken))
    with pytest.raises(ConfigError, match="'episode'"):
        trajectory_sequences(trajectory(), per="episode")
