import concurrent.futures

import pytest

from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.choices import ChoiceTrie
from sage_jax.rollout.programs import EngineConfig
from sage_jax.rollout.slots import SlotTable
from sage_jax.rollout.turns import Run, choice_mask, decode_batch, find_prefix, prefill_batch

CONFIG = EngineConfig(num_slots=5, max_length=64, prefill_chunk=8, prefill_rows=2, prefill_groups=2, block=32)


def start(table, session, ids, **sampling):
    request = GenerateRequest(session, session, tuple(ids), SamplingParams(**{"max_new_tokens": 9} | sampling))
    trie = ChoiceTrie(request.sampling.choices) if request.sampling.choices else None
    return table.start(session, Run(request, 9, concurrent.futures.Future(), trie))


def test_the_longest_beginning_that_another_slot_has_or_fills_is_found():
    table = SlotTable(4)
    idle = start(table, "idle", range(20))
    table.stop(idle, range(20))
    filling = start(table, "filling", range(30))
    own = start(table, "own", [*range(28), 99, 98])
    prefix = find_prefix(list(table), own, least=8)
    assert (prefix.slot, prefix.run, prefix.length) == (filling, filling.turn, 28)
    assert prefix.state() == "filling"
    filling.turn.filled = 28
    assert prefix.state() == "ready"


@pytest.mark.parametrize(("held", "least", "found"), [(16, 16, True), (16, 17, False), (15, 16, False)])
def test_a_short_beginning_is_not_worth_a_copy(held, least, found):
    table = SlotTable(4)
    slot = start(table, "idle", range(held))
    table.stop(slot, range(held))
    own = start(table, "own", range(40))
    assert (find_prefix(list(table), own, least) is not None) == found
    own.turn.filled = 1  # what the slot holds itself counts against it
    assert find_prefix(list(table), own, least) is None


def test_the_last_token_of_a_prompt_is_never_copied():
    table = SlotTable(4)
    slot = start(table, "idle", range(40))
    table.stop(slot, range(40))
    assert find_prefix(list(table), start(table, "own", range(40)), 8).length == 39


def test_a_turn_keeps_what_its_slot_holds():
    turn = start(SlotTable(1), "own", range(10)).turn
    turn.filled = 6  # cut short in prefill
    assert turn.kept(sampled=True) == turn.kept(sampled=False) == tuple(range(6))
    turn.filled = 9  # ... and before the first decode step, which writes the prompt's last token
    assert turn.kept(sampled=True) == turn.kept(sampled=False) == tuple(range(9))
    turn.extend(0, [20, 21], [-1.0, -1.0], [-1.0, -1.0])
    assert turn.kept(sampled=True) == (*range(10), 20)
    assert turn.kept(sampled=False) == tuple(range(9))


def test_a_beginning_is_gone_when_its_slot_was_given_away_or_the_weights_changed():
    table = SlotTable(2)
    filling = start(table, "filling", range(30))
    own = start(table, "own", range(30))
    prefix = find_prefix(list(table), own, 8)
    filling.turn.stale = True
    assert prefix.state() == "gone"
    filling.turn.stale = False
    table.stop(filling, range(12))  # it was cancelled
    assert prefix.state() == "gone"
    table.stop(filling, range(29))  # it ended
    assert prefix.state() == "ready"
    table.drop("filling")
    start(table, "another", range(100, 140))
    assert prefix.state() == "gone"


def test_stale_keys_are_no_beginning():
    table = SlotTable(2)
    start(table, "old", range(30)).turn.stale = True
    assert find_prefix(list(table), start(table, "own", range(30)), 8) is None


def test_a_slot_keeps_what_was_prefilled_and_on_demand_what_was_sampled():
    table = SlotTable(2)
    run = start(table, "one", range(10)).turn
    run.filled = 4
    assert run.kept(sampled=True) == run.kept(sampled=False) == (0, 1, 2, 3)  # stopped before all was prefilled
    run.filled = 9
    run.extend(3, [50, 51, 52], [-1.0] * 3, [-1.0] * 3)
    assert run.kept(sampled=False) == tuple(range(9))
    assert run.kept(sampled=True) == (*range(10), 50, 51)  # the last sampled token was never fed
    run.stale = True
    assert run.kept(sampled=True) == ()


def test_batches_name_slots_and_pad_with_rows_without_work():
    table = SlotTable(5)
    start(table, "other", range(5))
    slot = start(table, "one", range(20), seed=(7 << 32) + 5, top_k=100, stop_token_ids=(3, 4))
    pieces = prefill_batch(CONFIG, [(slot, 0, 8), (slot, 8, 3)])
    assert pieces.ids[1].tolist() == [8, 9, 10, 0, 0, 0, 0, 0]
    assert pieces.slots.tolist() == [1, 1, 0, 0]
    assert pieces.starts.tolist() == [0, 8, CONFIG.scratch, CONFIG.scratch]
    assert pieces.counts.tolist() == [8, 3, 0, 0]
    slot.turn.extend(1, [33], [-1.0], [-1.0])
    rows = decode_batch(CONFIG, 50, [slot])
    assert (rows.slots[0], rows.ids[0], rows.lengths[0], rows.budgets[0]) == (1, 33, 20, 8)
    assert rows.budgets[1:].tolist() == [0] * 7
    assert rows.stop_ids[0].tolist() == [3, 4, -1, -1, -1, -1, -1, -1]
    assert rows.sampling.seeds[0].tolist() == [7, 5]
    assert rows.sampling.top_k[0] == 50


def test_the_mask_of_choices_follows_what_was_sampled():
    table = SlotTable(5)
    slot = start(table, "one", range(5), choices=((1, 2), (1, 4), (6,)))
    assert [i for i, allowed in enumerate(choice_mask(CONFIG, 8, [slot])[0]) if allowed] == [1, 6]
    slot.turn.extend(1, [1], [-1.0], [-1.0])
    assert [i for i, allowed in enumerate(choice_mask(CONFIG, 8, [slot])[0]) if allowed] == [2, 4]
    assert choice_mask(CONFIG, 8, [slot])[1:].all()
