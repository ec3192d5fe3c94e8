"""Trees of sequences: laid out by hand, holding every sequence whole, limited where they must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_jax.data.packing import Sequence, micro_batches, pack
from sage_jax.data.prefixes import pack_shared, share_prefixes
from sage_jax.errors import DataError


def make(ids, mask, number=0):
    values = 10.0 * number + np.arange(len(ids))
    return Sequence(np.array(ids, np.int32), np.array(mask, np.float32), values, -values, number)


def test_a_tree_worked_by_hand():
    sequences = [make([5, 6, 7, 8], [0, 0, 0, 1], 1), make([5, 6, 9, 9, 2], [0, 0, 0, 0, 1], 2)]
    (tree,) = share_prefixes(sequences, 10)
    assert tree.ids.tolist() == [5, 6, 7, 8, 9, 9, 2]
    assert tree.positions.tolist() == [0, 1, 2, 3, 2, 3, 4]
    assert tree.ends.tolist() == [7, 7, 4, 4, 7, 7, 7]
    assert tree.mask.tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert (tree.sequence_ids[3], tree.sequence_ids[6]) == (1, 2)
    assert (tree.advantages[3], tree.advantages[6]) == (13.0, 24.0)


def test_a_target_that_is_context_for_another_is_shared_and_keeps_its_values():
    # The turn [7, 8] is trained on in the first sample and history in the second.
    first, second = make([5, 7, 8], [0, 1, 1], 1), make([5, 7, 8, 6, 4], [0, 0, 0, 0, 1], 2)
    for order in ([first, second], [second, first]):
        (tree,) = share_prefixes(order, 10)
        assert tree.ids.tolist() == [5, 7, 8, 6, 4]
        assert tree.mask.tolist() == [0, 1, 1, 0, 1]
        assert tree.advantages[tree.mask > 0].tolist() == [11.0, 12.0, 24.0]
        assert tree.sequence_ids[tree.mask > 0].tolist() == [1, 1, 2]


def test_what_both_train_on_is_not_shared_and_a_branch_begins_with_context():
    # Two answers to one prompt [5, 6]: both begin with 7. The branch repeats 6, so that 7 has its predecessor in front.
    sequences = [make([5, 6, 7, 8], [0, 0, 1, 1], 1), make([5, 6, 7, 9], [0, 0, 1, 1], 2)]
    (tree,) = share_prefixes(sequences, 10)
    assert tree.ids.tolist() == [5, 6, 7, 8, 6, 7, 9]
    assert tree.positions.tolist() == [0, 1, 2, 3, 1, 2, 3]
    assert tree.ends.tolist() == [7, 4, 4, 4, 7, 7, 7]


def test_a_target_at_the_start_of_a_branch_is_not_taken_over():
    # The third sample trains on 9, which is where the second branched off: its predecessor is not in front of it there.
    sequences = [
        make([5, 6, 7, 1], [0, 0, 0, 1], 1),
        make([5, 6, 9, 1], [0, 0, 0, 1], 2),
        make([5, 6, 9, 2], [0, 0, 1, 1], 3),
    ]
    (tree,) = share_prefixes(sequences, 20)
    assert tree.ids.tolist() == [5, 6, 7, 1, 9, 1, 6, 9, 2]
    assert tree.mask.tolist() == [0, 0, 0, 1, 0, 1, 0, 1, 1]


def test_trees_stay_below_the_limit():
    sequences = [make([5, 6, 7, 8, number], [0, 0, 0, 0, 1], number) for number in range(6)]
    trees = share_prefixes(sequences, 7)
    assert [len(tree.ids) for tree in trees] == [7, 7, 7]  # the branch repeats 8, which stands before its target
    assert sum(tree.mask.sum() for tree in trees) == 6


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=2, max_size=9), min_size=1, max_size=9))
def test_every_sequence_is_there_whole(drawn):
    sequences = []
    for number, tokens in enumerate(drawn):
        ids, mask = ([token for token, _ in tokens], [0] + [int(trained) for _, trained in tokens[1:]])
        if any(mask):
            sequences.append(make(ids, mask, number))
    if not sequences:
        return
    found = []
    for tree in share_prefixes(sequences, 12):
        assert len(tree.ids) <= 12
        place = np.arange(len(tree.ids))
        for target in np.flatnonzero(tree.mask):
            # What a target sees, in order, is its sequence up to itself; its predecessor stands directly before it.
            seen = np.flatnonzero((place <= target) & (target < tree.ends))
            assert tree.positions[seen].tolist() == list(range(len(seen)))
            assert seen[-2] == target - 1
            values = (tree.advantages[target], tree.engine_logprobs[target])
            found.append((int(tree.sequence_ids[target]), tuple(tree.ids[seen].tolist()), values))
    wanted = [
        (one.sequence_id, tuple(one.ids[: t + 1].tolist()), (one.advantages[t], one.engine_logprobs[t]))
        for one in sequences
        for t in np.flatnonzero(one.mask)
    ]
    assert sorted(found) == sorted(wanted)


def test_rows_and_micro_batches_carry_the_ends():
    sequences = [
        make([5, 6, 7, 8], [0, 0, 0, 1], 1),
        make([5, 6, 9, 9, 2], [0, 0, 0, 0, 1], 2),
        make([1, 2], [0, 1], 3),
    ]
    batch = pack_shared(sequences, row_length=10)
    assert batch.ends.tolist() == [[7, 7, 4, 4, 7, 7, 7, 9, 9, 10]]
    assert batch.segment_ids.tolist() == [[1] * 7 + [2] * 2 + [0]]
    micro = micro_batches(batch, 2, capacity_multiple=4)
    assert micro.ends.tolist() == [[batch.ends[0].tolist(), [10] * 10]]
    assert micro.targets[0, :3].tolist() == [8, 2, 2]
    assert micro.source[0, :3].tolist() == [2, 5, 7]
    assert micro_batches(pack(sequences, row_length=10), 2).ends is None
    np.testing.assert_array_equal(batch.rows([0]).ends, batch.ends)


def test_sequences_longer_than_a_row_are_refused():
    with pytest.raises(DataError, match="1 of 1 sequences are longer than row_length=3"):
        pack_shared([make([5, 6, 7, 8], [0, 0, 0, 1])], row_length=3)
