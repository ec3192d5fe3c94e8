"""The step-wise prompts: what they hold, in which order, and what they leave out."""

import pytest

from sage_jax.agents.parsing import Flag, parse_act, parse_review
from sage_jax.agents.prompts import ACT_FORMAT, ActPrompt, ReviewPrompt, Step, act_prompt, review_prompt
from sage_jax.skills import GENERAL, TOOLS, SkillBank, render_skills

STEPS = tuple(Step(f"saw {i}.", f"did {i}") for i in range(1, 16))


def test_the_first_step_has_no_history():
    text = act_prompt(ActPrompt("put a mug in the sink", "You are in a room.", ("look", "help", "go to sink 1")))
    assert text == (
        "You act in an environment of text. Your task is: put a mug in the sink\n\n"
        "Observation 1: You are in a room.\n\n"
        "Admissible actions:\nlook\ngo to sink 1\n\n" + ACT_FORMAT
    )


def test_later_steps_show_the_last_h():
    text = act_prompt(ActPrompt("t", "now.", ("look",), STEPS[:5], history_length=2))
    expected = (
        "Steps taken so far: 5. The last 2:\n"
        "Observation 4: saw 4.\nAction 4: did 4\nObservation 5: saw 5.\nAction 5: did 5\n\n"
        "Observation 6: now."
    )
    assert expected in text
    assert "saw 3" not in text


@pytest.mark.parametrize(("length", "shown"), [(0, 0), (1, 1), (12, 12), (15, 15), (99, 15)])
def test_history_lengths(length, shown):
    text = act_prompt(ActPrompt("t", "now.", ("look",), STEPS, history_length=length))
    assert sum(f"Action {i}: did {i}\n" in text for i in range(1, 16)) == shown


def test_skills_stand_before_the_observation_and_only_if_there_are_any():
    bank = SkillBank().add(category=GENERAL, title="Look", principle="Look around.")
    text = act_prompt(ActPrompt("t", "now.", ("look",), skills=render_skills(bank.skills)))
    assert text.index("- Look: Look around.") < text.index("Observation 1")
    assert "taught" not in act_prompt(ActPrompt("t", "now.", ("look",), skills=""))


def test_braces_and_percents_in_the_texts_are_harmless():
    text = act_prompt(ActPrompt("{task} %s", "{0} %d", ("search[{x}]",), (Step("{a}", "{b}"),)))
    assert all(piece in text for piece in ("{task} %s", "{0} %d", "search[{x}]", "{a}", "{b}"))


def _review(**change) -> str:
    bank = SkillBank().add(category=GENERAL, title="Look", principle="Look around.")
    fields = {"task": "put a hot mug", "category": "heat", "success": False, "reward": 0.0, "steps": STEPS}
    return review_prompt(ReviewPrompt(**{**fields, "skills": bank.skills, **change}))


def test_the_review_tells_the_episode():
    text = _review()
    head = "Task: put a hot mug\nCategory: heat\nOutcome: failure after 15 steps, reward 0\n"
    assert head in text
    assert "- [gen_1] Look: Look around." in text
    assert "The last 12 steps:\nObservation 4: saw 4.\nAction 4: did 4\n" in text
    assert "saw 3." not in text
    assert "Action 15: did 15\n" in text
    assert "Outcome: success after 15 steps, reward 10\n" in _review(success=True, reward=10.0)


def test_the_review_names_every_tool_with_its_arguments_and_the_category():
    text = _review()
    for name, arguments in TOOLS.items():
        assert f"{name}({', '.join(arguments)})" in text
    assert "category is general or heat" in text


def test_the_review_of_an_episode_without_steps_or_skills():
    text = _review(steps=(), skills=())
    assert "Skills that were shown:\nnone\n" in text
    assert "The last" not in text
    assert "after 0 steps" in text


def test_the_short_style_reaches_the_review():
    assert "\ngen_1 Look around.\n" in _review(style="short")


def test_copying_the_prompts_own_example_is_no_answer():
    copied = parse_act(act_prompt(ActPrompt("t", "now.", ("look",))), admissible=("look",))
    assert Flag.NOT_ADMISSIBLE in copied.flags
    assert not hasattr(parse_review(_review()).call, "arguments")
