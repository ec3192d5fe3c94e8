import json

import alfworld.info
import pytest

from sage_jax.envs.alfworld.game import read_game
from sage_jax.envs.alfworld.translation import load_translation, translate
from sage_jax.errors import DataError


@pytest.fixture
def game(tasks):
    task = tasks[0]
    with open(f"{task.payload['root']}/{task.payload['game']}") as file:
        data = json.load(file)
    return data["pddl_domain"], data["pddl_problem"]


def test_a_stored_translation_is_the_translation(game, tmp_path):
    made = load_translation(*game, tmp_path)
    (stored,) = tmp_path.rglob("*.json.gz")
    assert load_translation(*game, tmp_path) == made
    assert translate(*game) == made
    assert not list(tmp_path.rglob("*.partial"))
    assert stored.stat().st_size > 1000


def test_a_damaged_translation_is_made_again(game, tmp_path):
    made = load_translation(*game, tmp_path)
    (stored,) = tmp_path.rglob("*.json.gz")
    good = stored.read_bytes()
    for bad in (b"", good[: len(good) // 2], b"not gzip"):
        stored.write_bytes(bad)
        assert load_translation(*game, tmp_path) == made
    assert stored.read_bytes() == good


def test_changed_facts_are_fluents_and_constants_are_not(game):
    fluents = translate(*game).fluents
    assert {"atlocation", "holds", "inreceptacle", "opened"} <= set(fluents)
    assert not {"receptacleatlocation", "openable", "receptacletype"} & set(fluents)


@pytest.mark.parametrize("problem", ["", "(define (problem p)", "(define (problem p) (:domain other))"])
def test_a_broken_problem_is_a_data_error(problem):
    with open(alfworld.info.ALFRED_PDDL_PATH) as domain, pytest.raises(DataError, match="grounded"):
        translate(domain.read(), problem)


def test_the_grammar_keeps_a_task_sentence_that_needs_escapes(tasks, tmp_path):
    task = tasks[0]
    files = read_game(tmp_path.joinpath(task.payload["root"], task.payload["game"]))
    assert files.params["task_type"] == task.family
    assert files.grammar.count("Your task is to: ") == 1
