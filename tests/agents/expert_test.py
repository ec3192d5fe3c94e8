"""The scripted expert reads every task, solves rooms of text and of the real engine, and reviews as the tools allow."""

import random
import re

import alfworld.gen.goal_library as goal_library
import pytest

from sage_jax.agents.expert import (
    Goal,
    HouseholdDemonstrator,
    HouseholdExpert,
    expert_review,
    goal_of,
    hint_skill,
    hinted_types,
    list_things,
    parse_goal,
)
from sage_jax.benchmarks.alfworld import Alfworld, AlfworldSettings
from sage_jax.data.household import FAMILIES, OBJECTS, Household
from sage_jax.envs.alfworld import AlfworldFactory
from sage_jax.errors import DataError
from sage_jax.skills import EditKind, SkillBank, ToolCall, apply_edit

KINDS = dict(zip(FAMILIES, ("pick", "look", "clean", "heat", "cool", "two"), strict=True))
FIRST = "You are in the middle of a room. Looking quickly around you, you see {room}. Your task is to: {task}."
ROOM = "a bed 1, a desk 2, a desk 1, and a safe 1"


@pytest.mark.parametrize(
    ("family", "template"), [(family, text) for family in FAMILIES for text in goal_library.gdict[family]["templates"]]
)
@pytest.mark.parametrize(("thing", "where"), [("mug", "desk"), ("peppershaker", "countertop"), ("cloth", "cart")])
def test_every_task_sentence_of_the_benchmark_is_read(family, template, thing, where):
    sentence = template.format(obj=thing, recep=where, toggle=where)
    expected = Goal(KINDS[family], thing, where)
    assert parse_goal(sentence) == parse_goal(f"{sentence[0].upper()}{sentence[1:]}.") == expected


def test_every_task_sentence_of_the_text_household_is_read():
    for seed in range(400):
        room = Household(random.Random(seed))
        goal = parse_goal(room.first_observation.partition("Your task is to: ")[2])
        assert goal == Goal(KINDS[room.family], room.obj, room.dest)


def test_other_sentences_are_refused():
    for sentence in ("", "put the mug away", "clean the desk"):
        with pytest.raises(DataError, match="none of the six"):
            parse_goal(sentence)
    with pytest.raises(DataError, match="no receptacles"):
        HouseholdExpert("You see nothing. Your task is to: put a mug in desk.", "", random.Random(0))


def test_lists_and_hints_are_read():
    text = "On the desk 1, you see a mug 2, a alarmclock 1, and a cd 12."
    assert list_things(text) == ["mug 2", "alarmclock 1", "cd 12"]
    assert list_things("On the desk 1, you see nothing.") == []
    assert hinted_types("Start at fridge. never start at desk") == ["fridge", "desk"]
    assert hinted_types(" ".join(hint_skill("mug", "safe"))) == ["safe"]


def play(room, expert, *, max_steps, noise=0.0, rng=None):
    """Returns the number of steps that the expert took, None when it did not win in time."""
    observation = room.first_observation
    for step in range(max_steps):
        _, action = expert.act(observation)
        if rng is not None and rng.random() < noise:
            where, thing = rng.choice(room.receptacles), f"{rng.choice(OBJECTS)} 1"
            action = rng.choice((f"go to {where}", f"open {where}", f"take {thing} from {where}", "look", "dance"))
            expert.override(action)
        observation = room.step(action)
        if room.won:
            return step + 1
    return None


def solved_rooms(count, *, max_steps, noise=0.0, max_receptacles=12):
    """Returns for each family how many of its rooms the expert solved, and how many there were."""
    result = {family: [0, 0] for family in FAMILIES}
    for seed in range(count):
        rng = random.Random(seed)
        room = Household(rng, max_receptacles=max_receptacles)
        expert = HouseholdExpert(room.first_observation, "", rng)
        result[room.family][0] += play(room, expert, max_steps=max_steps, noise=noise, rng=rng) is not None
        result[room.family][1] += 1
    return result


def test_rooms_of_text_are_solved():
    counts = solved_rooms(300, max_steps=30)  # the corpus allows 30 steps
    assert all(total >= 30 for _, total in counts.values())
    assert sum(solved for solved, _ in counts.values()) >= 297


def test_large_rooms_are_solved():
    counts = solved_rooms(200, max_steps=60, max_receptacles=24)
    assert sum(solved for solved, _ in counts.values()) >= 198


def test_disturbed_plays_recover():
    counts = solved_rooms(300, max_steps=80, noise=0.3)
    assert sum(solved for solved, _ in counts.values()) >= 297


@pytest.fixture(scope="module")
def env():
    made = AlfworldFactory()()
    yield made
    made.close()


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_real_games_of_every_family_are_solved(env, household_games, noise):
    harmless = ("go", "open", "look", "examine", "inventory")
    for task in household_games:
        for seed in range(5):
            rng = random.Random(seed)
            observation = env.reset(task, seed)
            expert = HouseholdExpert(observation.text, "", rng)
            for _step in range(30 if not noise else 80):
                _, action = expert.act(observation.text)
                if rng.random() < noise:
                    action = rng.choice([a for a in observation.admissible if a.split()[0] in harmless])
                    expert.override(action)
                observation = env.step(action)
                if observation.won:
                    break
            assert observation.won, (task.family, seed)


def expert_in(task="put a mug in bed", skills="", seed=0):
    text = FIRST.format(room=ROOM, task=task)
    return HouseholdExpert(text, skills, random.Random(seed)), text


def test_search_starts_at_the_hint_and_follows_the_list_around_its_end():
    expert, text = expert_in(skills="start at desk")
    thought, action = expert.act(text)
    assert (thought, action) == ("need mug . skill : start at desk 2 .", "go to desk 2")
    walk = []
    for where in ("desk 2", "desk 1", "safe 1", "bed 1"):
        walk.append(expert.act(f"You arrive at {where}. On the {where}, you see nothing."))
    assert walk == [
        ("need mug . desk 2 then desk 1 .", "go to desk 1"),
        ("need mug . desk 1 then safe 1 .", "go to safe 1"),
        ("need mug . safe 1 then bed 1 .", "go to bed 1"),
        ("need mug . bed 1 then desk 2 .", "go to desk 2"),
    ]


def test_the_last_hint_that_the_room_has_counts():
    expert, text = expert_in(skills="start at desk . start at safe . start at fridge .")
    assert expert.act(text)[1] == "go to safe 1"
    expert, text = expert_in(skills="start at fridge")
    assert expert.hint is None


def test_without_a_hint_the_start_is_drawn():
    starts = {expert.act(text)[1] for expert, text in (expert_in(seed=seed) for seed in range(40))}
    assert starts == {"go to bed 1", "go to desk 2", "go to desk 1", "go to safe 1"}


def test_an_overridden_step_is_taken_again():
    expert, text = expert_in(skills="start at bed")
    assert expert.act(text)[1] == "go to bed 1"
    expert.override("look")
    assert expert.act("Nothing happens.")[1] == "go to bed 1"
    expert.override("go to safe 1")
    assert expert.act("You arrive at safe 1. The safe 1 is closed.")[1] == "open safe 1"


def reviewed(hints, seed):
    """Plays a room with hints; returns the expert, the call, what it did to a bank of those hints, and the bank."""
    rng = random.Random(seed)
    room = Household(rng)
    kinds = sorted({name.split()[0] for name in room.receptacles})
    bank = SkillBank()
    thing = goal_of(room.first_observation).obj
    for title, principle in dict.fromkeys(hint_skill(thing, rng.choice(kinds)) for _ in range(hints)):
        bank = bank.add(category="general", title=title, principle=principle)
    expert = HouseholdExpert(room.first_observation, " ".join(skill.principle for skill in bank), rng)
    assert play(room, expert, max_steps=60)
    thought, call = expert_review(expert, room.family, rng)
    call = ToolCall(call["name"], call["arguments"])
    return expert, thought, call, apply_edit(bank, call, task_category=room.family)


@pytest.mark.parametrize("hints", [0, 1])
def test_reviews_do_to_the_bank_what_they_say(hints):
    kinds = set()
    for seed in range(120):
        expert, thought, call, outcome = reviewed(hints, seed)
        found = expert.found_in[0]
        assert thought.startswith(f"{expert.goal.obj} found at {found} .")
        expected = {"propose_skill": EditKind.ADDED, "update_skill": EditKind.UPDATED, "keep_skill": EditKind.KEPT}
        assert outcome.kind is expected[call.name], outcome.reason
        kinds.add(outcome.kind)
        if hints and found == expert.hint:
            assert outcome.kind is EditKind.KEPT
        if outcome.kind.changes_bank:
            written = outcome.bank.get(outcome.skill_id)
            assert (written.title, written.principle) == hint_skill(expert.goal.obj, found)
            assert written.when_to_apply == f"to search {expert.goal.obj}"
            assert hinted_types(written.principle) == [found]
    assert kinds == {EditKind.ADDED, EditKind.KEPT} | ({EditKind.UPDATED} if hints else set())


def test_reviews_of_several_skills_are_calls_that_the_tools_know():
    kinds = [reviewed(3, seed)[3].kind for seed in range(120)]
    assert set(kinds) <= {EditKind.ADDED, EditKind.UPDATED, EditKind.KEPT, EditKind.DUPLICATE}


def test_the_review_of_a_failed_search_keeps_the_bank():
    expert, _ = expert_in()
    thought, call = expert_review(expert, FAMILIES[0], random.Random(0))
    assert thought == "no mug found ."
    outcome = apply_edit(SkillBank(), ToolCall(call["name"], call["arguments"]), task_category=FAMILIES[0])
    assert outcome.kind is EditKind.KEPT


def demonstrated(seed, guess):
    """Plays a room as the cold start does; returns the demonstrator's review and where the thing was found."""
    room = Household(random.Random(seed))
    demonstrator = HouseholdDemonstrator(room.first_observation, room.family, random.Random(seed), guess=guess)
    expert = demonstrator._expert
    assert play(room, expert, max_steps=60)
    found = expert.found_in[0]
    return demonstrator.review(), found, {name.split()[0] for name in room.receptacles}


def test_a_guess_names_a_place_of_the_room_that_is_mostly_wrong():
    sure = [demonstrated(seed, 0.0) for seed in range(60)]
    assert all(f"found at {found} ." in thought for (thought, _), found, _ in sure)
    guessed = [demonstrated(seed, 1.0) for seed in range(60)]
    named = [(re.search(r"found at (\w+)", thought)[1], found, places) for (thought, _), found, places in guessed]
    assert all(place in places for place, _, places in named)
    wrong = sum(place != found for place, found, _ in named)
    assert wrong > 30
    for (thought, call), _, _ in guessed:  # the form is that of any review
        place = re.search(r"found at (\w+)", thought)[1]
        if call["name"] == "propose_skill":
            assert hinted_types(call["arguments"]["principle"]) == [place]


def test_the_benchmark_hands_its_share_of_guesses_to_the_expert(tmp_path):
    settings = AlfworldSettings(review_guess=0.25)
    benchmark = Alfworld(settings, "generated", tmp_path, 0)
    room = Household(random.Random(0))
    assert benchmark.demonstrator(room.first_observation, room.family, random.Random(0))._guess == 0.25
