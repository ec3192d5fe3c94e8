"""Prices of turns: every flag and outcome, sums and parts."""

import dataclasses
import json

import pytest

from sage_jax.agents.parsing import Flag, parse_act, parse_review
from sage_jax.rewards import NO_EDIT, ActShaping, ReviewShaping, act_reward, ends_episode, review_reward
from sage_jax.skills import EditKind, EditOutcome, SkillBank, apply_edit
from sage_jax.types import RewardResult, Status

ACT_PRICES = {
    Flag.NOT_ADMISSIBLE: -0.5,
    Flag.TRUNCATED: -2.0,
    Flag.NO_ACTION: -2.0,
    Flag.NO_THINK: -1.0,
    Flag.EMPTY: -2.0,
    Flag.REPETITION: -0.5,
}


@pytest.mark.parametrize("flag", list(Flag))
def test_each_flag_has_its_price(flag):
    expected = ACT_PRICES.get(flag, 0.0)
    reward = act_reward({flag})
    assert reward.value == expected
    assert reward.parts == ({flag.value: expected} if flag in ACT_PRICES else {})


def test_every_price_and_every_end_is_a_flag():
    names = {f.name for f in dataclasses.fields(ActShaping)} - {"end_episode"}
    assert names == {flag.value for flag in ACT_PRICES}
    assert set(ActShaping().end_episode) <= {flag.value for flag in Flag}
    assert {"no_think", "no_tool_tags"} <= {flag.value for flag in Flag}


def test_faults_add_up():
    parse = parse_act("<think>on and", truncated=True)
    reward = act_reward(parse.flags)
    assert reward.value == -5.0  # truncated -2, no action -2, no closing think -1
    assert reward.value == sum(reward.parts.values())
    clean = act_reward(parse_act("<think>x</think><action>look</action>").flags)
    assert (clean.value, clean.parts) == (0.0, {})


def test_an_engine_failure_has_no_price():
    reward = act_reward({Flag.TRUNCATED}, status=Status.ENGINE_ERROR)
    assert (reward.value, reward.status) == (None, Status.ENGINE_ERROR)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", True),
        ("<think>x</think>look", True),
        ("<think>x</think><action>done</action>", True),
        ("<think>x</think><action>fly</action>", False),
        ("<action>look</action>", False),
    ],
)
def test_which_turns_end_the_episode(text, ends):
    flags = parse_act(text, admissible=("look",)).flags
    assert ends_episode(flags) == ends
    assert not ends_episode(flags, ActShaping(end_episode=()))


def _turn(call, *, text="<think>x</think>{}", utility=NO_EDIT, config=None):
    bank = SkillBank().add(category="general", title="Look", principle="Look around.")
    body = call if isinstance(call, str) else f"<tool_call>{json.dumps(call)}</tool_call>"
    parse = parse_review(text.format(body))
    outcome = apply_edit(bank, parse.call, task_category="heat")
    return review_reward(outcome, parse.flags, utility=utility, config=config or ReviewShaping())


def _proposal(**change):
    words = {"category": "heat", "title": "a b", "principle": "c d", "when_to_apply": "e", "evidence": "f"}
    return {"name": "propose_skill", "arguments": {**words, **change}}


UPDATE = {"skill_id": "gen_1", "title": "a b", "principle": "c d", "when_to_apply": "e", "reason": "f"}


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (_proposal(), "valid", 0.1),
        ({"name": "update_skill", "arguments": UPDATE}, "valid", 0.1),
        ({"name": "keep_skill", "arguments": {"reason": "r"}}, "valid", 0.1),
        (_proposal(title="look"), "duplicate", -0.5),
        ({"name": "update_skill", "arguments": {**UPDATE, "skill_id": "gen_2"}}, "not_found", -1.0),
        ("<tool_call>{</tool_call>", "parse_error", -2.0),
        (_proposal(category="cool"), "invalid_arguments", -1.0),
        (_proposal(title="..."), "placeholder", -1.5),
        ({"name": "make_skill", "arguments": {}}, "unknown_tool", -1.5),
        ({"name": "go to fridge 1", "arguments": {}}, "env_action", -3.0),
    ],
)
def test_each_outcome_of_a_review_has_its_price(call, name, value):
    reward = _turn(call)
    assert reward.value == value
    assert reward.parts == {"utility": 0.0, name: value}


def test_faults_of_form_add_to_the_outcome():
    no_think = _turn(_proposal(), text="{}")
    assert no_think.value == pytest.approx(0.1 - 0.5)
    bare = _turn(json.dumps(_proposal()))
    assert bare.parts == {"utility": 0.0, "parse_error": -2.0, "no_tool_tags": -0.5}
    assert _turn("", text="{}").value == -2.5  # parse error -2, no tool tags -0.5: nothing is there to lack a thought


def test_utility_is_added():
    reward = _turn(_proposal(), utility=RewardResult(0.75))
    assert reward.value == pytest.approx(0.85)
    assert reward.parts["utility"] == 0.75


def test_a_utility_without_a_value_leaves_the_turn_without_one():
    reward = _turn(_proposal(), utility=RewardResult(None, Status.TIMEOUT))
    assert (reward.value, reward.status) == (None, Status.TIMEOUT)


def test_every_outcome_is_priced():
    for kind in EditKind:
        reward = review_reward(EditOutcome(kind, SkillBank()), (), utility=NO_EDIT)
        assert reward.value != 0.0


def test_the_amounts_are_config():
    assert _turn(_proposal(), config=ReviewShaping(valid=1.0)).value == 1.0
