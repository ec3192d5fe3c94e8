"""Scenarios about files."""

from __future__ import annotations

import random

from sage_jax.envs.appworld.twin.base import Change, Draft, Person, Template
from sage_jax.envs.appworld.twin.notes import fill_notes
from sage_jax.envs.appworld.twin.words import THINGS, TOPICS

FOLDER, FILE = "file_system.Directory", "file_system.File"
_FILES = """def files_of(token, folder):
    return apis.file_system.show_directory(
        directory_path=folder, entry_type="files", recursive=False, access_token=token
    )

"""


def _fill(person: Person, rng: random.Random, top: str, endings: tuple[str, ...]) -> dict[str, list[dict]]:
    """Gives a person three folders under `~/<top>` with 5 to 8 files each; returns folder path -> files."""
    home = f"/home/{person.first_name.lower()}"
    things = iter(rng.sample(THINGS, len(THINGS)))
    folders: dict[str, list[dict]] = {}
    for path in ("/", "/home/", f"{home}/", f"{home}/{top}/"):
        person.add(FOLDER, path=path)
    for topic in rng.sample(TOPICS, 3):
        folder = f"{home}/{top}/{topic}/"
        person.add(FOLDER, path=folder)
        folders[folder] = []
        for number in range(rng.randint(5, 7)):
            ending = endings[number] if number < len(endings) else rng.choice(endings)
            amount = rng.randint(500, 9999) / 100
            person.add(FILE, path=f"{folder}{next(things)}{ending}", content=f"For the {topic}\nTotal: ${amount:.2f}")
            folders[folder].append({**person.rows[FILE][-1], "amount": amount})
    return folders


def _count(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    return tuple(
        Draft(
            f"How many .txt files are there in my folder {_tilde(folder)}?",
            sum(file["path"].endswith(".txt") for file in files),
            f"count_files({_tilde(folder)!r}, '.txt')",
        )
        for folder, files in _fill(person, rng, "documents", (".txt", ".md", ".csv")).items()
    )


def _clean(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    return tuple(
        Draft(
            f"Delete all files that end in .tmp from my folder {_tilde(folder)}.",
            None,
            f"delete_files({_tilde(folder)!r}, '.tmp')",
            tuple(Change(FILE, "removed", {"path": file["path"]}) for file in files if file["path"].endswith(".tmp")),
        )
        for folder, files in _fill(person, rng, "downloads", (".tmp", ".pdf", ".txt")).items()
    )


def _bills(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    return tuple(
        Draft(
            f"Every file in my folder {_tilde(folder)} has a line 'Total: $amount'. What do the amounts add up to?",
            round(sum(file["amount"] for file in files), 2),
            f"sum_totals({_tilde(folder)!r})",
        )
        for folder, files in _fill(person, rng, "bills", (".txt",)).items()
    )


def _save_note(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    folders = _fill(person, rng, "archive", (".txt", ".md"))
    notes = fill_notes(person, rng, rng.sample(TOPICS, 2))
    drafts = []
    for folder, note in zip(folders, rng.sample(notes, 3), strict=True):
        name = f"{note['title'].replace(' ', '_')}.note"
        words = (
            f"Save the text of my Simple Note note '{note['title']}' as a file {name} in my folder {_tilde(folder)}."
        )
        change = Change(FILE, "added", {"path": folder + name, "content": note["content"]})
        drafts.append(Draft(words, None, f"save_note({note['title']!r}, {_tilde(folder) + name!r})", (change,)))
    return tuple(drafts)


def _tilde(path: str) -> str:
    """Returns a path below the home folder as people write it."""
    return "~/" + path.split("/", 3)[3]


TEMPLATES = (
    Template(
        "file_count",
        ("file_system",),
        1,
        _FILES
        + """def count_files(folder, ending):
    return len([path for path in files_of(open_app("file_system"), folder) if path.endswith(ending)])""",
        _count,
    ),
    Template(
        "file_clean",
        ("file_system",),
        2,
        _FILES
        + """def delete_files(folder, ending):
    token = open_app("file_system")
    for path in files_of(token, folder):
        if path.endswith(ending):
            apis.file_system.delete_file(file_path=path, access_token=token)""",
        _clean,
    ),
    Template(
        "file_totals",
        ("file_system",),
        3,
        _FILES
        + """def sum_totals(folder):
    token, total = open_app("file_system"), 0
    for path in files_of(token, folder):
        content = apis.file_system.show_file(file_path=path, access_token=token)["content"]
        total += sum(float(line.split("$")[1]) for line in content.split("\\n") if line.startswith("Total"))
    return round(total, 2)""",
        _bills,
    ),
    Template(
        "file_from_note",
        ("file_system", "simple_note"),
        3,
        """def save_note(title, path):
    notes = open_app("simple_note")
    found = [n for n in all_pages(apis.simple_note.search_notes, access_token=notes) if n["title"] == title][0]
    content = apis.simple_note.show_note(note_id=found["note_id"], access_token=notes)["content"]
    apis.file_system.create_file(file_path=path, content=content, access_token=open_app("file_system"))""",
        _save_note,
    ),
)
