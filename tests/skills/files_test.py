"""Skill files in SkillRL's layout, and what a broken one says."""

import json

import pytest

from sage_jax.errors import SkillError
from sage_jax.skills import GENERAL, MISTAKE, SkillBank, load_bank, save_bank

PUBLISHED = {
    "general_skills": [
        {
            "skill_id": "gen_001",
            "title": "Search in order",
            "principle": "Visit each place once.",
            "when_to_apply": "x",
        },
        {"skill_id": "gen_002", "title": "Take it", "principle": "Take what you need at once."},
    ],
    "task_specific_skills": {
        "heat": [{"skill_id": "hea_001", "title": "Heat", "principle": "Use the microwave.", "when_to_apply": "hot"}],
        "cool": [{"title": "Cool", "principle": "Use the fridge.", "when_to_apply": "cold"}],
    },
    "common_mistakes": [
        {
            "mistake_id": "err_001",
            "description": "Walks in circles",
            "why_it_happens": "No memory",
            "how_to_avoid": "Note where you were",
        }
    ],
    "metadata": {"made_by": "someone"},
}


def _write(tmp_path, data):
    path = tmp_path / "bank.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def test_the_published_fields_are_read(tmp_path):
    bank = load_bank(_write(tmp_path, PUBLISHED))
    assert [(s.id, s.category) for s in bank] == [
        ("gen_001", GENERAL),
        ("gen_002", GENERAL),
        ("hea_001", "heat"),
        ("task_1", "cool"),
        ("err_001", MISTAKE),
    ]
    mistake = bank.get("err_001")
    expected = ("Walks in circles", "Note where you were", "No memory")
    assert (mistake.title, mistake.principle, mistake.when_to_apply) == expected
    assert bank.get("gen_002").when_to_apply == ""
    assert bank.version == 5
    assert bank.log[0].provenance.reason == "loaded from bank.json"


def test_a_saved_bank_reads_back_the_same(tmp_path):
    bank = load_bank(_write(tmp_path, PUBLISHED))
    save_bank(bank, tmp_path / "again.json")
    again = load_bank(tmp_path / "again.json")
    assert again.fingerprint == bank.fingerprint
    saved = json.loads((tmp_path / "again.json").read_text())
    assert saved["common_mistakes"] == PUBLISHED["common_mistakes"]
    assert saved["general_skills"][0] == PUBLISHED["general_skills"][0]


def test_families_can_be_renamed(tmp_path):
    bank = load_bank(_write(tmp_path, PUBLISHED), rename={"heat": "pick_heat_then_place_in_recep"})
    assert bank.get("hea_001").category == "pick_heat_then_place_in_recep"
    assert bank.get("task_1").category == "cool"


def test_a_given_id_later_in_the_file_is_not_taken(tmp_path):
    skills = [{"title": "a", "principle": "b"}, {"skill_id": "gen_1", "title": "c", "principle": "d"}]
    bank = load_bank(_write(tmp_path, {"general_skills": skills}))
    assert [s.id for s in bank] == ["gen_2", "gen_1"]


def test_a_mistake_may_have_the_fields_of_a_skill(tmp_path):
    mistakes = [{"skill_id": "m", "title": "a", "principle": "b", "when_to_apply": "c"}]
    skill = load_bank(_write(tmp_path, {"common_mistakes": mistakes})).get("m")
    assert (skill.category, skill.title, skill.principle, skill.when_to_apply) == (MISTAKE, "a", "b", "c")


def test_an_empty_bank_can_be_saved_and_loaded(tmp_path):
    save_bank(SkillBank(), tmp_path / "empty.json")
    assert len(load_bank(tmp_path / "empty.json")) == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ([], "at least one of general_skills"),
        ({"skills": []}, "at least one of general_skills"),
        ({"general_skills": {}}, "general_skills must be a list, found dict"),
        ({"general_skills": ["x"]}, r"general_skills\[0\] must be an object, found str"),
        ({"general_skills": [{"title": "a"}]}, r"general_skills\[0\].principle"),
        ({"general_skills": [{"title": "a", "principle": " "}]}, r"general_skills\[0\].principle"),
        ({"general_skills": [{"title": 3, "principle": "b"}]}, r"general_skills\[0\].title .*found 3"),
        ({"general_skills": [{"title": "a", "principle": "b", "when_to_apply": 1}]}, "when_to_apply"),
        ({"task_specific_skills": []}, "task_specific_skills must be an object of lists"),
        ({"task_specific_skills": {"heat": "x"}}, "task_specific_skills.heat must be a list"),
        ({"task_specific_skills": {"heat": [{"title": "a", "principle": "b"}, {}]}}, r"heat\[1\].title"),
        ({"task_specific_skills": {"general": []}}, "cannot be the name of a task family"),
        ({"common_mistakes": [{"description": "a"}]}, r"common_mistakes\[0\].principle"),
        (
            {"general_skills": [{"skill_id": "g", "title": "a", "principle": "b"}] * 2},
            r"general_skills\[1\]: .*'g' was used before",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_field(tmp_path, data, message):
    path = _write(tmp_path, data)
    with pytest.raises(SkillError, match=message) as error:
        load_bank(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SkillError, match=r"nowhere.json: cannot be read"):
        load_bank(tmp_path / "nowhere.json")
