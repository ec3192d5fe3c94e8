import pytest

from sage_jax.rollout.slots import SlotTable, common_prefix


def test_a_session_returns_to_its_slot():
    table = SlotTable(3)
    first = table.start("a", "turn 1")
    table.stop(first, (1, 2, 3))
    table.start("b", "turn 1")
    assert table.start("a", "turn 2") is first
    assert first.kept == (1, 2, 3)


def test_free_slots_are_taken_before_any_session_is_evicted():
    table = SlotTable(2)
    table.stop(table.start("a", "turn"), (1,))
    table.stop(table.start("b", "turn"), (2,))
    assert table.evictions == 0
    assert table.kept_sessions() == 2


def test_the_longest_idle_session_is_evicted_first():
    table = SlotTable(2)
    slots = {name: table.start(name, "turn") for name in ("a", "b")}
    table.stop(slots["b"], (2,))
    table.stop(slots["a"], (1,))
    newcomer = table.start("c", "turn")
    assert newcomer is slots["b"]
    assert newcomer.kept == ()
    assert table.evictions == 1


def test_running_turns_are_never_evicted():
    table = SlotTable(1)
    table.start("a", "turn")
    assert table.start("b", "turn") is None


def test_drop_frees_idle_sessions_only():
    table = SlotTable(1)
    slot = table.start("a", "turn")
    table.drop("a")
    table.drop("unknown")
    assert slot.session == "a"
    table.stop(slot, (1,))
    table.drop("a")
    assert (slot.session, slot.kept, table.kept_sessions()) == (None, (), 0)


def test_a_slot_tells_its_turn_or_that_it_has_none():
    table = SlotTable(1)
    slot = table.start("a", "turn")
    assert slot.turn == "turn"
    table.stop(slot, ())
    with pytest.raises(ValueError, match="slot 0"):
        _ = slot.turn


def test_forget_empties_slots_and_keeps_turns():
    table = SlotTable(2)
    table.stop(table.start("a", "turn"), (1, 2))
    running = table.start("b", "turn")
    table.forget()
    assert all(slot.kept == () for slot in table)
    assert table.running() == [running]


def test_running_lists_the_longest_untouched_first():
    table = SlotTable(3)
    for name in ("a", "b"):
        table.start(name, name)
    table.stop(table.running()[0], ())
    table.start("a", "a again")
    assert [slot.turn for slot in table.running()] == ["b", "a again"]


def test_common_prefix():
    assert common_prefix((1, 2, 3), (1, 2, 3, 4)) == 3
    assert common_prefix((1, 2, 9), (1, 2, 3, 4)) == 2
    assert common_prefix((), (1,)) == 0
    assert common_prefix((7,), (1,)) == 0
