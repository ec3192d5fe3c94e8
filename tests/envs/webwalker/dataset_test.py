"""The public questions in three spellings, and files that are none."""

import json

import pytest

from sage_jax.envs.webwalker import read_questions
from sage_jax.errors import DataError

FLAT = {
    "Question": "Who?",
    "answer": "She",
    "domain": "game",
    "source_website": ["https://a.example/x"],
    "golden_path": ["root->X"],
    "type": "single_source",
    "difficulty_level": "easy",
    "lang": "en",
    "root_url": "https://a.example/",
}
INFO = {key: FLAT[key] for key in ("domain", "source_website", "golden_path", "type", "difficulty_level", "lang")}
SPELLINGS = [
    FLAT,
    {"question": "Who?", "answer": "She", "root_url": "https://a.example/", "info": INFO},
    {"question": "Who?", "Answer": "She", "Root_Url": "https://a.example/", "info": json.dumps(INFO)},
]


@pytest.mark.parametrize("row", SPELLINGS)
@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_spellings_and_files_give_one_task(tmp_path, row, suffix):
    path = tmp_path / f"questions.{suffix}"
    if suffix == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps([row]) if suffix == "json" else json.dumps(row) + "\n\n")
    (task,) = read_questions(path)
    assert task.family == "single_source-easy"
    assert task.payload == {
        "question": "Who?",
        "answer": "She",
        "root_url": "https://a.example/",
        "type": "single_source",
        "difficulty": "easy",
        "domain": "game",
        "lang": "en",
        "source_website": ["https://a.example/x"],
        "golden_path": ["root->X"],
    }


def test_one_path_may_be_a_text_and_columns_may_be_missing(tmp_path):
    row = {**FLAT, "golden_path": "root->X"}
    del row["lang"]
    path = tmp_path / "q.json"
    path.write_text(json.dumps([row]))
    payload = read_questions(path)[0].payload
    assert (payload["golden_path"], payload["lang"]) == (["root->X"], "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "expected a JSON list of questions, found dict"),
        ("[]", "holds no question"),
        ("[1]", "question 0 is no object but int"),
        (json.dumps([FLAT, {**FLAT, "answer": " "}]), "question 1 has no answer"),
        (json.dumps([{**FLAT, "type": "triple"}]), "type='triple'; expected single_source or multi_source"),
        (json.dumps([{"question": "q", "answer": "a", "root_url": "r", "info": "x"}]), "question 0: info: is not JSON"),
    ],
)
def test_broken_files_are_named_with_the_place(tmp_path, content, message):
    path = tmp_path / "q.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as error:
        read_questions(path)
    assert str(path) in str(error.value)
    with pytest.raises(DataError, match="cannot be read"):
        read_questions(tmp_path / "absent.json")
