"""A user's copy of GAIA, in the layouts that are about (contents made up)."""

import json

import pytest

from sage_jax.envs.gaia import read_gaia
from sage_jax.errors import DataError

ROWS = [
    {"task_id": "a", "Question": "How many?", "Level": 1, "Final answer": "3", "file_name": ""},
    {
        "task_id": "b",
        "Question": "What?",
        "Level": "3",
        "Final answer": "?",
        "file_name": "b.txt",
        "file_path": "x/b.txt",
    },
]


@pytest.mark.parametrize("place", ["2023/validation", "validation", "."])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_layouts(tmp_path, place, suffix):
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "b.txt").write_text("text")
    rows = [{**row, "Level": str(row["Level"])} for row in ROWS]
    if suffix == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "metadata.level1.parquet")
    else:
        (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    first, second = read_gaia(tmp_path)
    assert first.id == "gaia-validation-a"
    assert (first.family, second.family) == ("level1", "level3")
    assert first.payload == {"question": "How many?", "answer": "3", "level": 1, "files": {}}
    assert second.payload["answer"] is None
    assert second.payload["files"] == {"b.txt": str((folder / "b.txt").absolute())}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "question 0: is no object"),
        (json.dumps({**ROWS[0], "Question": ""}), "column 'Question' is missing"),
        (json.dumps({**ROWS[0], "Level": 4}), "Level=4; expected 1, 2 or 3"),
        (json.dumps({**ROWS[0], "Level": "easy"}), "Level='easy'"),
        (json.dumps({**ROWS[0], "file_name": "gone.pdf"}), r"its file .*gone\.pdf is missing"),
    ],
)
def test_broken_copies_are_named_with_the_place(tmp_path, line, message):
    (tmp_path / "metadata.jsonl").write_text(line)
    with pytest.raises(DataError, match=message):
        read_gaia(tmp_path)


def test_no_copy_at_all(tmp_path):
    with pytest.raises(DataError, match="get your own copy"):
        read_gaia(tmp_path)
