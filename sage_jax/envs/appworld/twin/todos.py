"""Scenarios about to-do lists."""

from __future__ import annotations

import random

from sage_jax.envs.appworld.twin.base import Change, Draft, Person, Template
from sage_jax.envs.appworld.twin.notes import fill_notes
from sage_jax.envs.appworld.twin.words import THINGS, TOPICS, VERBS

PROJECT, TASK = "todoist.Project", "todoist.Task"
_TASKS = """def project_tasks(token, name):
    for project in all_pages(apis.todoist.show_projects, access_token=token):
        if project["name"] == name:
            shown = apis.todoist.show_tasks(project_id=project["project_id"], access_token=token)
            return project["project_id"], shown["no_section_tasks"]

"""


def _fill(person: Person, rng: random.Random) -> dict[str, list[dict]]:
    """Gives a person three projects of 4 to 7 tasks each; titles are unique."""
    things = iter(rng.sample(THINGS, len(THINGS)))
    projects: dict[str, list[dict]] = {}
    for name in rng.sample(TOPICS, 3):
        person.add(PROJECT, name=name)
        projects[name] = []
        for number in range(rng.randint(4, 7)):
            # The first two of a project make sure that no task comes out empty.
            priority = "high" if number == 0 else rng.choice(("low", "medium", "high"))
            done = number == 1 or (number > 1 and rng.random() < 0.4)
            title = f"{rng.choice(VERBS)} the {next(things)}"
            person.add(TASK, project=name, title=title, priority=priority, is_completed=done, order_index=number)
            projects[name].append(person.rows[TASK][-1])
    return projects


def _count(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    return tuple(
        Draft(
            f"How many tasks of my Todoist project '{name}' are still open?",
            sum(not task["is_completed"] for task in tasks),
            f"count_open({name!r})",
        )
        for name, tasks in _fill(person, rng).items()
    )


def _complete(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    drafts = []
    for name, tasks in _fill(person, rng).items():
        due = [task for task in tasks if task["priority"] == "high" and not task["is_completed"]]
        changes = tuple(Change(TASK, "updated", {"title": task["title"]}, {"is_completed": True}) for task in due)
        words = (
            f"I have done everything of high priority in my Todoist project '{name}'. Mark those tasks as completed."
        )
        drafts.append(Draft(words, None, f"complete_high({name!r})", changes))
    return tuple(drafts)


def _tidy(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    return tuple(
        Draft(
            f"Delete the completed tasks of my Todoist project '{name}'.",
            None,
            f"delete_done({name!r})",
            tuple(Change(TASK, "removed", {"title": task["title"]}) for task in tasks if task["is_completed"]),
        )
        for name, tasks in _fill(person, rng).items()
    )


def _from_note(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    projects = _fill(person, rng)
    notes = fill_notes(person, rng, rng.sample(TOPICS, 2))
    drafts = []
    for name, note in zip(projects, rng.sample(notes, 3), strict=True):
        lines = [line.removeprefix("- ") for line in note["content"].split("\n")]
        where = {"project_id": {"model": PROJECT, "name": name}, "is_completed": False}
        changes = tuple(Change(TASK, "added", {"title": line, **where}) for line in lines)
        words = (
            f"Turn each line of my Simple Note note '{note['title']}' into a task of my Todoist project '{name}'. "
            "The task's title is the line without the dash."
        )
        drafts.append(Draft(words, None, f"tasks_from_note({note['title']!r}, {name!r})", changes))
    return tuple(drafts)


TEMPLATES = (
    Template(
        "todo_count",
        ("todoist",),
        1,
        _TASKS
        + """def count_open(name):
    return len([task for task in project_tasks(open_app("todoist"), name)[1] if not task["is_completed"]])""",
        _count,
    ),
    Template(
        "todo_complete",
        ("todoist",),
        2,
        _TASKS
        + """def complete_high(name):
    token = open_app("todoist")
    for task in project_tasks(token, name)[1]:
        if task["priority"] == "high" and not task["is_completed"]:
            apis.todoist.update_task(task_id=task["task_id"], is_completed=True, access_token=token)""",
        _complete,
    ),
    Template(
        "todo_tidy",
        ("todoist",),
        2,
        _TASKS
        + """def delete_done(name):
    token = open_app("todoist")
    for task in project_tasks(token, name)[1]:
        if task["is_completed"]:
            apis.todoist.delete_task(task_id=task["task_id"], access_token=token)""",
        _tidy,
    ),
    Template(
        "todo_from_note",
        ("todoist", "simple_note"),
        3,
        _TASKS
        + """def tasks_from_note(title, name):
    notes = open_app("simple_note")
    found = [n for n in all_pages(apis.simple_note.search_notes, access_token=notes) if n["title"] == title][0]
    content = apis.simple_note.show_note(note_id=found["note_id"], access_token=notes)["content"]
    token = open_app("todoist")
    project = project_tasks(token, name)[0]
    for line in content.split("\\n"):
        apis.todoist.create_task(project_id=project, title=line.removeprefix("- "), access_token=token)""",
        _from_note,
    ),
)
