"""Puts a generated world into AppWorld's own format. Runs in AppWorld's virtual environment, not in ours.

    PYTHON build_world.py WORLD.json ROOT      (third_party/appworld/install.sh calls it)

ROOT gets data/{api_docs,base_dbs,datasets,tasks} and solutions.json (for the scripted expert): made on this machine
from the installed package, and not to be passed on, because the package's documents and schemas are in it.
"""

import copy
import datetime
import json
import os
import pathlib
import re
import shutil
import sys

WORLD, ROOT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
os.environ["APPWORLD_ROOT"] = str(ROOT)  # read when appworld is imported

import evaluation  # noqa: E402
from appworld.apps import get_all_apps  # noqa: E402
from appworld.apps.api_lib import set_local_date_and_time  # noqa: E402
from appworld.collections.api_docs import ApiDocCollection  # noqa: E402
from appworld.collections.models import ModelCollection  # noqa: E402
from appworld.common.constants import CANARY_STRING, DB_VERSION  # noqa: E402

ACCOUNTS = ("simple_note", "todoist", "phone", "file_system", "spotify")
MEMORY = ":memory:base"


def main() -> None:
    """Builds the root."""
    world = json.loads(WORLD.read_text())
    data = ROOT / "data"
    for name in ("api_docs/standard", "datasets", "tasks"):
        (data / name).mkdir(parents=True)
    docs = ApiDocCollection.build(tuple(get_all_apps(skip_admin=True)))
    for app, entries in docs.items():
        plain = {n: dict(copy.deepcopy(dict(d)), canary_string=CANARY_STRING) for n, d in entries.items()}
        (data / f"api_docs/standard/{app}.json").write_text(json.dumps(plain, default=str))
    frozen = set_local_date_and_time(datetime.datetime.fromisoformat(world["datetime"]))
    models = ModelCollection.load(
        from_db_home_path=MEMORY, to_db_home_path=MEMORY, load_apps=get_all_apps(), create_db=True
    )
    fields = models.api_docs.ApiDoc.__fields__
    for entries in docs.values():
        for doc in entries.values():
            row = {name: doc[name] for name in fields if name in doc}
            models.api_docs.ApiDoc(**row, app_name_=doc["app_name"]).save()
    songs = insert_songs(models, world["shared"])
    for person in world["people"]:
        models.admin.MainUser(**identity(person)).save()
        insert_person(models, person, songs)
    models.save(db_home_path=str(data / "base_dbs"), format="full", app_names=get_all_apps(), delete_if_exists=True)
    people = world["people"]
    for task in world["tasks"]:
        write_task(models, data, task, people[task["person"]], world["datetime"])
    for split, ids in world["splits"].items():
        (data / f"datasets/{split}.txt").write_text("\n".join(ids) + "\n")
    solutions = {
        task["id"]: {"template": world["templates"][task["id"].rpartition("_")[0]], "solution": task["solution"]}
        for task in world["tasks"]
    }
    (ROOT / "solutions.json").write_text(json.dumps(solutions))
    frozen.stop()


def identity(person: dict) -> dict:
    """Returns what tells who the person is."""
    names = {key: person[key] for key in ("first_name", "last_name", "email", "phone_number")}
    return {**names, "birthday": "1990-01-01", "sex": "female"}


def insert_songs(models, shared: dict) -> dict[str, int]:
    """Inserts artists and songs; returns song title -> id."""
    artists = {}
    for row in shared["spotify.Artist"]:
        artist = models.spotify.Artist(**row)
        artist.save()
        artists[row["name"]] = artist.id
    ids = {}
    for row in shared["spotify.Song"]:
        plain = {key: row[key] for key in ("title", "genre", "duration")}
        song = models.spotify.Song(
            **plain, artist_ids=[artists[row["artist"]]], release_date=datetime.datetime(2020, 1, 1)
        )
        song.save()
        ids[row["title"]] = song.id
    return ids


def insert_person(models, person: dict, songs: dict[str, int]) -> None:
    """Inserts a person's accounts and rows; rows that name others ("project", "song") get their ids."""
    users = {}
    for app in ACCOUNTS:
        address = (
            {"phone_number": person["phone_number"]} if app == "phone" else {"email": person["email"], "verified": True}
        )
        names = {key: person[key] for key in ("first_name", "last_name", "password")}
        user = models[app].User(**names, **address)
        user.save()
        users[app] = user.id
    models.spotify.MusicPlayer(user_id=users["spotify"]).save()
    projects: dict[str, int] = {}
    for model, rows in person["rows"].items():
        app, name = model.split(".")
        for row in rows:
            row = {"user_id": users[app], **row}
            if "project" in row:
                row["project_id"] = projects[row.pop("project")]
            if "song" in row:
                row["song_id"] = songs[row.pop("song")]
            record = models[app][name](**row)
            record.save()
            if model == "todoist.Project":
                projects[row["name"]] = record.id
                models.todoist.ProjectCollaboratorLink(project_id=record.id, user_id=users[app]).save()


def write_task(models, data: pathlib.Path, task: dict, person: dict, when: str) -> None:
    """Writes a task's folder."""
    folder = data / "tasks" / task["id"]
    truth = folder / "ground_truth"
    truth.mkdir(parents=True)
    models.restart_db_tracker()
    supervisor = models.supervisor.Supervisor(**identity(person))
    supervisor.save()
    accounts = [
        models.supervisor.AccountPassword(supervisor_id=supervisor.id, account_name=app, password=person["password"])
        for app in ACCOUNTS
    ]
    entry = models.supervisor.Task(supervisor_id=supervisor.id, instruction=task["instruction"])
    for record in (*accounts, entry):
        record.save()
    # As differences from the base, like the official tasks': so is what an episode changes, and the two add up.
    models.save(db_home_path=str(folder / "dbs"), format="changes", app_names=get_all_apps(), delete_if_exists=True)
    for record in (entry, *accounts, supervisor):
        record.delete()
    make_first(folder / "dbs" / "supervisor.jsonl")
    public = {key: person[key] for key in ("first_name", "last_name", "email", "phone_number")}
    specs = {
        "instruction": task["instruction"],
        "supervisor": public,
        "datetime": when,
        "db_version": DB_VERSION,
        "canary_string": CANARY_STRING,
    }
    (folder / "specs.json").write_text(json.dumps(specs))
    code = "\n".join([task["solution"]["functions"], task["solution"]["call"]])
    metadata = {
        "mode": "minimal",
        "difficulty": task["difficulty"],
        "num_apis": code.count("apis."),
        "num_apps": 1,
        "num_solution_code_lines": code.count("\n") + 1,
    }
    contents = {
        "metadata": metadata,
        "public_data": {},
        "private_data": {"changes": task["changes"]},
        "answer": task["answer"],
        "test_data": evaluation.requirements(task["changes"]),
    }
    for name, content in contents.items():
        (truth / f"{name}.json").write_text(json.dumps(content))
    shutil.copy(pathlib.Path(evaluation.__file__), truth / "evaluation.py")


def make_first(path: pathlib.Path) -> None:
    """Makes the supervisor of recorded statements number 1, which he is where they are replayed on the base.

    Here numbers go on from task to task, though the rows are deleted.
    """
    statements = [json.loads(line) for line in path.read_text().splitlines()]
    for statement, parameters, _ in statements:
        columns = re.findall(r"\((.*?)\) VALUES", statement)[0].split(", ")
        if "supervisor_id" in columns:
            parameters[columns.index("supervisor_id")] = 1
    path.write_text("".join(json.dumps(statement) + "\n" for statement in statements))


if __name__ == "__main__":
    main()
