"""Scenarios about contacts and alarms."""

from __future__ import annotations

import random

from sage_jax.envs.appworld.twin.base import Change, Draft, Person, Template
from sage_jax.envs.appworld.twin.notes import NOTE
from sage_jax.envs.appworld.twin.words import FIRST_NAMES, LAST_NAMES, RELATIONSHIPS

CONTACT, ALARM = "phone.Contact", "phone.Alarm"
_LABELS = ("swim", "school run", "bakery", "gym", "call home", "water plants", "train", "standup", "medicine")
_CONTACTS = """def my_contacts():
    return all_pages(apis.phone.search_contacts, access_token=open_app("phone"))

"""


def _fill_contacts(person: Person, rng: random.Random) -> list[dict]:
    """Gives a person 9 to 14 contacts with first names of their own."""
    firsts = rng.sample([name for name in FIRST_NAMES if name != person.first_name], rng.randint(9, 14))
    for number, first in enumerate(firsts):
        last = rng.choice(LAST_NAMES)
        person.add(
            CONTACT,
            first_name=first,
            last_name=last,
            email=f"{first}.{last}.{rng.randint(100, 999)}@example.com".lower(),
            phone_number=f"555{rng.randint(1000000, 9999999)}",
            relationships=[RELATIONSHIPS[number % len(RELATIONSHIPS)]],
        )
    return person.rows[CONTACT]


def _fill_alarms(person: Person, rng: random.Random) -> list[dict]:
    """Gives a person seven to nine alarms, an enabled one in each part of the day."""
    for number, label in enumerate(rng.sample(_LABELS, rng.randint(7, 9))):
        hour = (6, 12, 20)[number] if number < 3 else rng.randint(5, 22)
        time = f"{hour:02d}:{rng.choice((0, 15, 30, 45)):02d}"
        person.add(
            ALARM,
            time=time,
            label=label,
            enabled=number < 3 or rng.random() < 0.6,
            repeat_days=["monday"],
            snooze_minutes=5,
        )
    return person.rows[ALARM]


def _number(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    contacts = rng.sample(_fill_contacts(person, rng), 3)
    return tuple(
        Draft(
            f"What is the phone number of {contact['first_name']} {contact['last_name']} among my phone contacts?",
            contact["phone_number"],
            f"number_of({contact['first_name']!r}, {contact['last_name']!r})",
        )
        for contact in contacts
    )


def _relations(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    contacts = _fill_contacts(person, rng)
    return tuple(
        Draft(
            f"How many of my phone contacts are marked as {relation}?",
            sum(relation in contact["relationships"] for contact in contacts),
            f"count_contacts({relation!r})",
        )
        for relation in rng.sample(RELATIONSHIPS, 3)
    )


def _alarms(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    alarms = _fill_alarms(person, rng)
    drafts = []
    for start, end, words in (
        ("00:00", "09:00", "before 9:00"),
        ("11:00", "15:00", "from 11:00 to before 15:00"),
        ("19:00", "24:00", "at 19:00 or later"),
    ):
        off = [alarm for alarm in alarms if start <= alarm["time"] < end and alarm["enabled"]]
        changes = tuple(Change(ALARM, "updated", {"label": alarm["label"]}, {"enabled": False}) for alarm in off)
        drafts.append(
            Draft(
                f"Switch off all phone alarms that are set {words}.", None, f"alarms_off({start!r}, {end!r})", changes
            )
        )
    return tuple(drafts)


def _list_contacts(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    contacts = _fill_contacts(person, rng)
    drafts = []
    for relation in rng.sample(RELATIONSHIPS, 3):
        mine = sorted((c for c in contacts if relation in c["relationships"]), key=lambda c: c["first_name"])
        content = "\n".join(f"{c['first_name']} {c['last_name']}: {c['phone_number']}" for c in mine)
        title = f"Numbers, {relation}"
        words = (
            f"Make a note titled '{title}' in Simple Note with my phone contacts marked as {relation}, one a line, "
            "sorted by first name, each as 'First Last: number'."
        )
        change = Change(NOTE, "added", {"title": title, "content": content})
        drafts.append(Draft(words, None, f"note_contacts({relation!r}, {title!r})", (change,)))
    return tuple(drafts)


TEMPLATES = (
    Template(
        "contact_number",
        ("phone",),
        1,
        _CONTACTS
        + """def number_of(first, last):
    return [c["phone_number"] for c in my_contacts() if (c["first_name"], c["last_name"]) == (first, last)][0]""",
        _number,
    ),
    Template(
        "contact_count",
        ("phone",),
        1,
        _CONTACTS
        + """def count_contacts(relation):
    return len([c for c in my_contacts() if relation in c["relationships"]])""",
        _relations,
    ),
    Template(
        "alarms_off",
        ("phone",),
        2,
        """def alarms_off(start, end):
    token = open_app("phone")
    for alarm in all_pages(apis.phone.show_alarms, access_token=token):
        if alarm["enabled"] and start <= alarm["time"] < end:
            apis.phone.update_alarm(alarm_id=alarm["alarm_id"], enabled=False, access_token=token)""",
        _alarms,
    ),
    Template(
        "contact_note",
        ("phone", "simple_note"),
        3,
        _CONTACTS
        + """def note_contacts(relation, title):
    mine = [c for c in my_contacts() if relation in c["relationships"]]
    mine.sort(key=lambda c: c["first_name"])
    content = "\\n".join(f"{c['first_name']} {c['last_name']}: {c['phone_number']}" for c in mine)
    apis.simple_note.create_note(title=title, content=content, access_token=open_app("simple_note"))""",
        _list_contacts,
    ),
)
