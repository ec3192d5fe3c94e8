"""The bank: edits, ids, the log, snapshots, the fingerprint."""

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_jax.errors import SkillError
from sage_jax.skills import GENERAL, MISTAKE, BankEdit, Provenance, Skill, SkillBank

PROVENANCE = Provenance(task_id="t1", policy_version=3, step=7, utility=0.5, reason="it won")


def _bank() -> SkillBank:
    bank = SkillBank().add(category=GENERAL, title="look first", principle="look before you search")
    bank = bank.add(category="heat", title="use heat", principle="heat in the microwave", when_to_apply="hot goal")
    return bank.add(category=MISTAKE, title="forgot to open", principle="open it first", provenance=PROVENANCE)


def test_ids_versions_and_order():
    bank = _bank()
    assert [s.id for s in bank] == ["gen_1", "task_1", "err_1"]
    assert (bank.version, len(bank)) == (3, 3)
    bank = bank.add(category="cool", title="use cold", principle="cool in the fridge")
    assert [s.id for s in bank.category("cool")] == ["task_2"]
    assert "task_2" in bank
    assert "task_3" not in bank


def test_an_edit_leaves_the_old_bank_alone_and_shares_its_skills():
    old = _bank()
    new = old.update("task_1", title="use heat", principle="heat it", when_to_apply="", provenance=PROVENANCE)
    assert old.get("task_1").principle == "heat in the microwave"
    assert new.get("task_1").principle == "heat it"
    assert [s.id for s in new] == [s.id for s in old]
    assert new.get("gen_1") is old.get("gen_1")
    assert new.log[:3] == old.log


def test_the_log_tells_before_after_and_provenance():
    bank = _bank().update("err_1", title="t", principle="p", when_to_apply="w", provenance=PROVENANCE)
    bank = bank.remove("gen_1")
    update, remove = bank.log[-2:]
    assert (update.index, update.kind, update.before.title, update.after.title) == (3, "update", "forgot to open", "t")
    assert update.provenance == PROVENANCE
    assert (remove.kind, remove.before.id, remove.after) == ("remove", "gen_1", None)


def test_ids_are_never_given_twice():
    bank = _bank().remove("gen_1").add(category=GENERAL, title="again", principle="another")
    assert [s.id for s in bank.category(GENERAL)] == ["gen_2"]
    with pytest.raises(SkillError, match="gen_1.*never reused"):
        bank.add(category=GENERAL, title="x", principle="y", skill_id="gen_1")


def test_ids_of_any_form_are_kept_and_numbering_goes_on_after_them():
    bank = SkillBank().add(category=GENERAL, title="a", principle="b", skill_id="gen_007")
    bank = bank.add(category=GENERAL, title="c", principle="d", skill_id="gen_last")
    assert bank.next_id(GENERAL) == "gen_8"
    assert bank.next_id("heat") == "task_1"


def test_duplicates_go_by_words():
    bank = _bank()
    assert bank.find_duplicate("Look, FIRST!", "something else").id == "gen_1"
    assert bank.find_duplicate("new", "Open it  first.").id == "err_1"
    assert bank.find_duplicate("new", "new") is None
    assert bank.find_duplicate("look first", "new", ignore="gen_1") is None


def test_unknown_ids_and_empty_words_are_refused():
    with pytest.raises(SkillError, match="'gen_9'.*gen_1, task_1, err_1"):
        _bank().remove("gen_9")
    with pytest.raises(SkillError, match="gen_9"):
        _bank().update("gen_9", title="a", principle="b", when_to_apply="")
    with pytest.raises(SkillError, match="principle"):
        _bank().add(category=GENERAL, title="a", principle=" \n ")


def test_the_fingerprint_is_of_what_can_be_read():
    bank = _bank()
    assert bank.fingerprint == _bank().fingerprint
    same_words = SkillBank.replay([dataclasses.replace(e, index=i) for i, e in enumerate(bank.log)])
    assert same_words.fingerprint == bank.fingerprint
    skill = bank.get("task_1")
    words = {"title": skill.title, "principle": skill.principle, "when_to_apply": skill.when_to_apply}
    assert bank.update("task_1", **words, provenance=PROVENANCE).fingerprint == bank.fingerprint
    for name in words:
        changed = {**words, name: words[name] + " now"}
        assert bank.update("task_1", **changed).fingerprint != bank.fingerprint
    assert bank.remove("err_1").fingerprint != bank.fingerprint


def test_a_fingerprint_is_the_same_on_every_machine():
    # blake2b-128 of '[["gen_1", "general", "a", "b", ""]]'.
    bank = SkillBank().add(category=GENERAL, title="a", principle="b")
    assert bank.fingerprint == "eb7d65fee6c591cfe0d0c2a5a8e11cd3"


def test_a_bank_survives_pickle_and_deepcopy():
    bank = _bank()
    for other in (pickle.loads(pickle.dumps(bank)), copy.deepcopy(bank)):
        assert other == bank
        assert other.skills == bank.skills
        assert hash(other) == hash(bank)


def test_a_snapshot_goes_through_json():
    bank = _bank().remove("gen_1")
    again = SkillBank.restore(json.loads(json.dumps(bank.snapshot())))
    assert again == bank
    assert again.skills == bank.skills
    assert again.next_id(GENERAL) == bank.next_id(GENERAL) == "gen_2"


def _broken(change) -> dict:
    snapshot = json.loads(json.dumps(_bank().snapshot()))
    change(snapshot)
    return snapshot


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(format="other"), "'other'"),
        (lambda s: s.pop("log"), "broken log"),
        (lambda s: s["log"][0].pop("after"), "broken log"),
        (lambda s: s["log"][0]["after"].update(colour="red"), "broken log"),
        (lambda s: s["log"].pop(1), r"log\[2\]: index is 2, expected 1"),
        (lambda s: s["log"][1].update(kind="rename"), r"log\[1\].kind is 'rename'"),
        (lambda s: s["log"][1].update(kind="remove"), r"log\[1\]: 'before' and 'after' do not fit"),
        (lambda s: s["log"][2]["after"].update(title=5), r"log\[2\].after.title is 5"),
        (lambda s: s["log"][2]["after"].update(id="gen_1"), "never reused"),
    ],
)
def test_a_damaged_snapshot_is_refused(change, message):
    with pytest.raises(SkillError, match=message):
        SkillBank.restore(_broken(change))


def test_data_that_is_no_snapshot_is_refused():
    with pytest.raises(SkillError, match="list"):
        SkillBank.restore([])


def test_a_log_that_does_not_lead_on_is_refused():
    bank = _bank()
    stranger = dataclasses.replace(bank.get("gen_1"), title="never so")
    with pytest.raises(SkillError, match="does not read like this"):
        SkillBank.replay([*bank.log, BankEdit(3, "remove", stranger, None, PROVENANCE)])
    renamed = dataclasses.replace(bank.get("gen_1"), id="gen_5")
    with pytest.raises(SkillError, match="not the updated skill"):
        SkillBank.replay([*bank.log, BankEdit(3, "update", bank.get("gen_1"), renamed, PROVENANCE)])


_words = st.text(min_size=1, max_size=8).filter(lambda t: t.split())
_edits = st.lists(
    st.tuples(
        st.sampled_from(["add", "update", "remove"]),
        st.sampled_from([GENERAL, MISTAKE, "heat", "cool"]),
        _words,
        _words,
        st.integers(0, 50),
    ),
    max_size=25,
)


@given(_edits)
def test_replaying_the_log_gives_the_bank(edits):
    bank = SkillBank()
    for kind, category, title, principle, pick in edits:
        if kind == "add":
            bank = bank.add(category=category, title=title, principle=principle, provenance=PROVENANCE)
        elif len(bank):
            skill_id = bank.skills[pick % len(bank)].id
            if kind == "update":
                bank = bank.update(skill_id, title=title, principle=principle, when_to_apply=title)
            else:
                bank = bank.remove(skill_id)
    replayed = SkillBank.replay(bank.log)
    assert replayed == bank
    assert replayed.skills == bank.skills
    assert replayed.fingerprint == bank.fingerprint
    assert replayed.next_id("heat") == bank.next_id("heat")
    assert SkillBank.restore(json.loads(json.dumps(bank.snapshot()))).skills == bank.skills
    added = [e.after.id for e in bank.log if e.kind == "add"]
    assert len(added) == len(set(added))
    # Any prefix of the log is an earlier version.
    half = SkillBank.replay(bank.log[: bank.version // 2])
    assert half.version == bank.version // 2
    assert all(isinstance(s, Skill) for s in half)
