"""SKILL.md files, folders of them, and their history."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_jax.errors import SkillError
from sage_jax.skills import SkillFile, SkillFolder, load_folder, parse_skill

FIND = SkillFile("find-on-site", "When a fact lies deep: in a site", "1. Open the section.\n2. Read `the` page.")


def test_text_and_back():
    front = "---\nname: find-on-site\ndescription: 'When a fact lies deep: in a site'\n---\n\n1. Open"
    assert FIND.text.startswith(front)
    assert parse_skill(FIND.text) == FIND


@settings(max_examples=50, deadline=None)
@given(
    description=st.text(min_size=1, max_size=60).map(lambda text: " ".join(text.split())).filter(bool),
    body=st.text(min_size=1, max_size=120).map(str.strip).filter(bool),
)
def test_any_words_survive(description, body):
    body = body.replace("\r", "")
    if not body.strip() or not description.isprintable() or not body.replace("\n", "").isprintable():
        return
    skill = SkillFile("a-1", description, body.strip())
    assert parse_skill(skill.text) == skill


def test_files_of_others_are_read():
    text = "\ufeff---\r\nname: x\r\ndescription: >\r\n  two\r\n  lines\r\nlicense: MIT\r\n---\r\nBody\r\n"
    assert parse_skill(text) == SkillFile("x", "two lines", "Body")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no front matter", "begins with front matter"),
        ("---\nname: x\n", "begins with front matter"),
        ("---\n[\n---\nb", "is not YAML"),
        ("---\n- a\n---\nb", "must hold name"),
        ("---\nname: x\n---\nb", "no text description"),
        ("---\nname: 3\ndescription: d\n---\nb", "no text name"),
        ("---\nname: Bad Name\ndescription: d\n---\nb", "lower-case letters and digits"),
        ("---\nname: ../up\ndescription: d\n---\nb", "lower-case letters and digits"),
        ("---\nname: x\ndescription: d\n---\n \n", "body must have 1 to"),
        (f"---\nname: x\ndescription: d\n---\n{'b' * 20001}", "found 20001"),
        ("---\nname: !!python/object/apply:os.system [ls]\ndescription: d\n---\nb", "is not YAML"),
    ],
)
def test_what_is_no_skill(text, message):
    with pytest.raises(SkillError, match=message):
        parse_skill(text)


def test_folders_are_values_with_a_history(tmp_path):
    first = SkillFolder().put(FIND, generation=0)
    better = SkillFile("find-on-site", FIND.description, "Read the page.")
    second = first.put(better, generation=1, reward=0.5)
    assert [len(first), len(second)] == [1, 1]
    assert next(iter(first)) == FIND  # the run that holds `first` notices nothing
    second.save(tmp_path / "skills")
    loaded = load_folder(tmp_path / "skills")
    assert loaded == second
    assert loaded.history[1] == {
        "name": "find-on-site",
        "before": FIND.fingerprint,
        "after": better.fingerprint,
        "generation": 1,
        "reward": 0.5,
    }
    (tmp_path / "skills/find-on-site/SKILL.md").write_text(FIND.text)
    assert next(iter(loaded)) == better


def test_broken_folders(tmp_path):
    with pytest.raises(SkillError, match="no such folder"):
        load_folder(tmp_path / "absent")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/SKILL.md").write_text(FIND.text)
    with pytest.raises(SkillError, match="named 'find-on-site' but lies in 'other'"):
        load_folder(tmp_path)
    (tmp_path / "other/SKILL.md").write_bytes(b"\xff")
    with pytest.raises(SkillError, match=r"other/SKILL\.md"):
        load_folder(tmp_path)
    (tmp_path / "other/SKILL.md").unlink()
    (tmp_path / "history.jsonl").write_text(json.dumps({"a": 1}) + "\n{")
    with pytest.raises(SkillError, match="not JSON"):
        load_folder(tmp_path)
