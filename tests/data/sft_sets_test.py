"""SFT sets: what is written comes back, in a shuffled order that can be left and taken up."""

import numpy as np
import pytest

from sage_jax.data.packing import Sequence
from sage_jax.data.sft_sets import build_array_record, open_set, sft_batches, write_jsonl
from sage_jax.errors import ConfigError, DataError

CONVERSATIONS = [
    [("user", f"where is pen {number} ?", False), ("assistant", "look — “there”\n", number % 2 == 0)] * (1 + number % 3)
    for number in range(7)
]


def to_sequence(messages):
    number = int(messages[0][1].split()[3])
    return Sequence(np.array([1, number]), np.array([0.0, 1.0]), np.zeros(2), np.zeros(2), number)


@pytest.fixture
def jsonl(tmp_path):
    write_jsonl(tmp_path / "set.jsonl", CONVERSATIONS)
    return tmp_path / "set.jsonl"


def test_jsonl_comes_back(jsonl):
    source = open_set(jsonl)
    assert [source[index] for index in range(len(source))] == CONVERSATIONS


def test_array_record_comes_back_without_tensorflow(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    source = open_set(build_array_record(CONVERSATIONS, tmp_path))
    assert [source[index] for index in range(len(source))] == CONVERSATIONS


def numbers(batches):
    return [[sequence.sequence_id for sequence in batch] for batch in batches]


def test_every_pass_takes_each_conversation_once_in_an_order_of_its_own(jsonl):
    batches = numbers(sft_batches(open_set(jsonl), to_sequence, batch=3, seed=1, epochs=2))
    assert [len(batch) for batch in batches] == [3, 3, 3, 3, 2]
    flat = sum(batches, [])
    assert sorted(flat[:7]) == sorted(flat[7:]) == list(range(7))
    assert flat[:7] != flat[7:]
    assert batches == numbers(sft_batches(open_set(jsonl), to_sequence, batch=3, seed=1, epochs=2))
    assert batches != numbers(sft_batches(open_set(jsonl), to_sequence, batch=3, seed=2, epochs=2))


def test_an_iterator_goes_on_where_another_stood(jsonl):
    def start():
        return iter(sft_batches(open_set(jsonl), to_sequence, batch=2, seed=0, epochs=2))

    first = start()
    next(first), next(first)
    state = first.get_state()
    second = start()
    second.set_state(state)
    assert numbers(first) == numbers(second) != []


def test_what_is_no_set_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent\.jsonl is missing"):
        open_set(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no conversation"):
        open_set(tmp_path / "empty.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"messages": [["user", "a"]]}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl, conversation 1: no list of \[role, text, trained\]"):
        open_set(tmp_path / "bad.jsonl")[0]
    with pytest.raises(ConfigError, match="batch=0"):
        sft_batches([], to_sequence, batch=0, seed=0)


def test_a_folder_without_a_set_is_named(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(DataError, match="holds no prepared array_record set"):
        open_set(tmp_path)
