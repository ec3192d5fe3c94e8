"""Scenarios about notes."""

from __future__ import annotations

import random

from sage_jax.envs.appworld.twin.base import Change, Draft, Person, Template
from sage_jax.envs.appworld.twin.words import THINGS, TOPICS, VERBS

NOTE = "simple_note.Note"
_MINE = """def my_notes(token):
    return all_pages(apis.simple_note.search_notes, access_token=token)

"""


def fill_notes(person: Person, rng: random.Random, topics: list[str]) -> list[dict]:
    """Gives a person 8 to 12 notes, at least two of each topic, and returns them."""
    notes = []
    count = rng.randint(4 * len(topics) - 4, 4 * len(topics))
    for number, thing in enumerate(rng.sample(THINGS, count)):
        topic = topics[number % len(topics)]
        lines = [f"- {verb} the {rng.choice(THINGS)}" for verb in rng.sample(VERBS, rng.randint(2, 4))]
        title = f"{topic} {thing}"
        person.add(NOTE, title=title, content="\n".join(lines), tags=[topic], pinned=rng.random() < 0.3)
        notes.append(person.rows[NOTE][-1])
    return notes


def _count(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    topics = rng.sample(TOPICS, 3)
    notes = fill_notes(person, rng, topics)
    return tuple(
        Draft(
            f"How many of my notes in Simple Note carry the tag '{topic}'?",
            sum(topic in note["tags"] for note in notes),
            f"count_notes({topic!r})",
        )
        for topic in topics
    )


def _pin(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    topics = rng.sample(TOPICS, 3)
    notes = fill_notes(person, rng, topics)
    drafts = []
    for topic in topics:
        mine = [note for note in notes if topic in note["tags"]]
        mine[0]["pinned"] = False  # so that there is something to do
        changes = tuple(
            Change(NOTE, "updated", {"title": note["title"]}, {"pinned": True}) for note in mine if not note["pinned"]
        )
        drafts.append(
            Draft(
                f"Pin every note in Simple Note that carries the tag '{topic}'.", None, f"pin_notes({topic!r})", changes
            )
        )
    return tuple(drafts)


def _delete(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    topics = rng.sample(TOPICS, 3)
    notes = fill_notes(person, rng, topics)
    return tuple(
        Draft(
            f"Throw away all my notes in Simple Note with the tag '{topic}', and no others.",
            None,
            f"delete_notes({topic!r})",
            tuple(Change(NOTE, "removed", {"title": note["title"]}) for note in notes if topic in note["tags"]),
        )
        for topic in topics
    )


def _append(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    notes = fill_notes(person, rng, rng.sample(TOPICS, 2))
    drafts = []
    for note, verb in zip(rng.sample(notes, 3), rng.sample(VERBS, 3), strict=True):
        line = f"- {verb} the {rng.choice(THINGS)}"
        changed = Change(NOTE, "updated", {"title": note["title"]}, {"content": f"{note['content']}\n{line}"})
        words = f"Add the line '{line}' at the end of my note '{note['title']}' in Simple Note, on a line of its own."
        drafts.append(Draft(words, None, f"add_line({note['title']!r}, {line!r})", (changed,)))
    return tuple(drafts)


def _longest(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    topics = rng.sample(TOPICS, 3)
    notes = fill_notes(person, rng, topics)
    drafts = []
    for topic in topics:
        mine = [note for note in notes if topic in note["tags"]]
        mine[-1]["content"] += "".join(f"\n- {verb} the {rng.choice(THINGS)}" for verb in VERBS[:5])
        longest = max(mine, key=lambda note: note["content"].count("\n"))
        words = f"Which of my notes in Simple Note with the tag '{topic}' has the most lines? Answer with its title."
        drafts.append(Draft(words, longest["title"], f"longest_note({topic!r})"))
    return tuple(drafts)


TEMPLATES = (
    Template(
        "note_count",
        ("simple_note",),
        1,
        _MINE
        + """def count_notes(tag):
    return len([note for note in my_notes(open_app("simple_note")) if tag in note["tags"]])""",
        _count,
    ),
    Template(
        "note_pin",
        ("simple_note",),
        2,
        _MINE
        + """def pin_notes(tag):
    token = open_app("simple_note")
    for note in my_notes(token):
        if tag in note["tags"] and not note["pinned"]:
            apis.simple_note.update_note(note_id=note["note_id"], pinned=True, access_token=token)""",
        _pin,
    ),
    Template(
        "note_delete",
        ("simple_note",),
        2,
        _MINE
        + """def delete_notes(tag):
    token = open_app("simple_note")
    for note in my_notes(token):
        if tag in note["tags"]:
            apis.simple_note.delete_note(note_id=note["note_id"], access_token=token)""",
        _delete,
    ),
    Template(
        "note_append",
        ("simple_note",),
        2,
        _MINE
        + """def add_line(title, line):
    token = open_app("simple_note")
    for note in my_notes(token):
        if note["title"] == title:
            content = apis.simple_note.show_note(note_id=note["note_id"], access_token=token)["content"]
            content = content + "\\n" + line
            apis.simple_note.update_note(note_id=note["note_id"], content=content, access_token=token)""",
        _append,
    ),
    Template(
        "note_longest",
        ("simple_note",),
        2,
        _MINE
        + """def longest_note(tag):
    token = open_app("simple_note")
    best, most = None, -1
    for note in my_notes(token):
        if tag in note["tags"]:
            lines = apis.simple_note.show_note(note_id=note["note_id"], access_token=token)["content"].count("\\n")
            if lines > most:
                best, most = note["title"], lines
    return best""",
        _longest,
    ),
)
