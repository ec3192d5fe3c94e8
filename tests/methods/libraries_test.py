"""What a rollout keeps of its code, and what counts as having used it."""

import json

import pytest

from sage_jax.agents.episode import EpisodePlan
from sage_jax.methods.libraries import CodeLibrary, FixedBank, TextLibrary
from sage_jax.skills import SkillBank
from sage_jax.skills.program_retrieval import ProgramRetrieval
from sage_jax.types import RewardResult, Task, Trajectory, Turn

COUNT = "def count(tag):\n    return 1"
PLAN = EpisodePlan(Task("s_2", "appworld", "train", "f", {"scenario": "s", "instruction": "count chess"}), "g", 0)


def episode(*code: str, ran=True, won=True, shown=(), called=(), number=1) -> Trajectory:
    task = Task(f"s_{number}", "appworld", "train", "f", {"scenario": "s", "instruction": f"count {number}"})
    turns = tuple(Turn("act", (1,), (2,), (0.0,), True, 5, info={"action": c, "ran": ran}) for c in code)
    info = {"success": won, "programs": list(shown), "called": list(called)}
    return Trajectory(task, "0/c#0", 9, turns, RewardResult(float(won)), info)


def test_what_ran_is_kept_with_its_origin():
    library = CodeLibrary().learn(episode(f"{COUNT}\nanswer = count('a')", won=False), 0)
    (program,) = library.show(PLAN).programs
    assert program.source == COUNT
    origin = program.origin
    assert (origin.task_id, origin.scenario, origin.query, origin.policy_version) == ("s_1", "s", "count 1", 5)
    assert origin.position == 0
    assert len(CodeLibrary().learn(episode(COUNT, ran=False), 0)) == 0
    assert len(CodeLibrary().learn(episode("x = 1"), 0)) == 0


def test_a_skill_that_is_defined_anew_is_of_the_later_task():
    library = CodeLibrary(credit="name").learn(episode(COUNT), 0)
    library = library.learn(episode(COUNT.replace("1", "2"), number=2), 1)
    (program,) = library.programs.programs
    assert program.source.endswith("return 2")
    assert library.used(episode("print(count('b'))", shown=["count"])) == frozenset({1})


@pytest.mark.parametrize(
    ("code", "called", "by_name", "by_trace"),
    [
        ("print(count('b'))", ["count"], True, True),
        ("f = count\nprint(3)", [], True, False),  # named without being called
        ("getattr(__builtins__, 'x', 0); globals()['count']('b')", ["count"], False, True),
        (f"{COUNT}\nprint(count('b'))", [], False, False),  # it is not the stored one any more
        ("print(3)", [], False, False),
    ],
)
def test_use_by_name_and_by_trace(code, called, by_name, by_trace):
    second = episode(code, shown=["count"], called=called)
    for credit, expected in (("name", by_name), ("trace", by_trace)):
        library = CodeLibrary(credit=credit).learn(episode(COUNT), 0)
        assert library.used(second) == (frozenset({0}) if expected else frozenset())
        history = library.learn(second, 1).programs.programs[0]
        if "def " not in code:
            assert (history.uses, history.successes) == (int(expected), int(expected))


def test_a_program_that_was_not_shown_cannot_have_been_used():
    library = CodeLibrary(credit="name").learn(episode(COUNT), 0)
    assert library.used(episode("print(count('b'))", shown=[])) == frozenset()


def test_retrieval_chooses_in_evaluations_alone():
    library = CodeLibrary(retrieval=ProgramRetrieval("scenario")).learn(episode(COUNT), 0)
    assert len(library.show(PLAN).programs) == 1
    other = EpisodePlan(Task("t_1", "appworld", "train", "f", {"scenario": "t"}), "g", 0)
    assert library.show(other).programs == ()
    assert len(CodeLibrary().learn(episode(COUNT), 0).show(other).programs) == 1


def spoken(*acts: str, review: str = "", shown=(), family="fashion") -> Trajectory:
    """An episode of an agent that speaks: its acts, its review, and the ids of the skills it was shown."""
    task = Task("shop/1", "webshop", "train", family)
    turns = [Turn("act", (1,), (2,), (0.0,), True, 5, info={"text": text}) for text in acts]
    turns += [Turn("review", (1,), (2,), (0.0,), False, 6, info={"text": review})] if review else []
    return Trajectory(task, "0/c#0", 9, tuple(turns), RewardResult(1.0), {"success": True, "skills": list(shown)})


def proposal(principle: str, category="fashion") -> str:
    arguments = {"category": category, "title": principle[:9], "principle": principle, "when_to_apply": "to search"}
    call = {"name": "propose_skill", "arguments": {**arguments, "evidence": "it was found"}}
    return f"<think> found . </think> <tool_call> {json.dumps(call)} </tool_call>"


def test_a_review_writes_what_the_next_task_is_shown():
    plan = TextLibrary().show(PLAN)
    assert plan.review
    assert len(plan.bank) == 0
    library = TextLibrary().learn(spoken("x", review=proposal("search with options")), 0)
    (skill,) = library.show(PLAN).bank
    assert (skill.principle, skill.category) == ("search with options", "fashion")
    assert len(library) == 1
    for review in (
        "",
        "no call at all",
        proposal("search with type", category="garden"),
        proposal("search with options"),
    ):
        assert library.learn(spoken("x", review=review), 1) is library


def test_a_text_is_used_when_it_was_shown_and_spoken_of():
    library = TextLibrary().learn(spoken("x", review=proposal("search with options")), 0)
    (skill,) = library.bank
    says = "<think> skill : search with options . </think> <action> search[red coat] </action>"
    assert library.used(spoken("hm", says, shown=[skill.id])) == frozenset({0})
    assert library.used(spoken("hm", says)) == frozenset()
    assert library.used(spoken("search with", "options", shown=[skill.id])) == frozenset()  # never in one turn
    reviewed = spoken("hm", review=proposal("search with options"), shown=[skill.id])
    assert library.used(reviewed) == frozenset()  # to write of it is not to use it


def test_an_updated_text_is_of_the_later_task():
    library = TextLibrary().learn(spoken("x", review=proposal("search with type")), 0)
    call = {
        "skill_id": "search wi",
        "title": "other",
        "principle": "search with all",
        "when_to_apply": "a",
        "reason": "b",
    }
    text = f"<tool_call> {json.dumps({'name': 'update_skill', 'arguments': call})} </tool_call>"
    library = library.learn(spoken("x", review=text), 1)
    (skill,) = library.bank
    assert library.used(spoken("search with all", shown=[skill.id])) == frozenset({1})


def test_a_fixed_bank_is_shown_and_stays():
    bank = SkillBank().add(category="general", title="a", principle="search with options")
    library = FixedBank(bank)
    plan = library.show(PLAN)
    assert (plan.bank, plan.review, len(library)) == (bank, False, 1)
    taught = spoken("search with options", review=proposal("search with type"), shown=[skill.id for skill in bank])
    assert library.learn(taught, 0) is library
    assert library.used(taught) == frozenset()
