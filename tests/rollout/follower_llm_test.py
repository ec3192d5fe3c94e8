"""What all followers share: words of a skill are steps, some are overlooked by the seed, and a budget ends it."""

import asyncio

import pytest

from sage_jax.errors import BudgetError
from sage_jax.rollout.follower_llm import FollowerLlm, action
from sage_jax.rollout.task_llm import Budget, ChatRequest


class Repeats(FollowerLlm):
    """Says which steps it obeys, and what it has seen."""

    known = ("go north", "go south")

    def next(self, question, observations, calls, steps):
        return action("say", f"{question} {sorted(steps)} {list(calls)} {len(observations)}")


def ask(llm, skill, seed=0, turns=()):
    talk = [{"role": "user", "content": "Question: Where?\n\nA room."}]
    for turn in turns:
        talk += [{"role": "assistant", "content": turn}, {"role": "user", "content": "Observation: a wall"}]
    system = {"role": "system", "content": f"Go south in no case.\n\nSkill: walk\nWhen: lost\n{skill}"}
    return asyncio.run(llm.complete(ChatRequest((system, *talk), seed=seed)))


def test_steps_are_read_in_the_skill_alone():
    llm = Repeats(slip=0.0)
    assert ask(llm, "First go  NORTH.").text.endswith("Where? ['go north'] [] 1")
    assert ask(llm, "go north . go south").text.endswith("['go north', 'go south'] [] 1")
    assert ask(llm, "go up", turns=(action("say", "hello"),)).text.endswith("[] ['hello'] 2")


def test_it_slips_by_its_seed():
    llm = Repeats(slip=0.5)
    answers = [ask(llm, "go north . go south", seed).text for seed in range(200)]
    assert answers == [ask(llm, "go north . go south", seed).text for seed in range(200)]
    obeyed = [sum(step in text for text in answers) for step in Repeats.known]
    assert all(70 < count < 130 for count in obeyed)  # 100 +- 4 deviations of 7
    both = sum("north" in text and "south" in text for text in answers)
    assert 25 < both < 75  # each step is overlooked by itself


def test_a_budget_ends_it():
    llm = Repeats(budget=Budget(calls=1))
    assert ask(llm, "go north").completion_tokens > 0
    with pytest.raises(BudgetError, match="task_calls"):
        ask(llm, "go north")
    assert llm.spending.calls == 1
