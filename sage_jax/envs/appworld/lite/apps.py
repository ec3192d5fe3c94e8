"""The apps of a lite world: each function is an API under AppWorld's name, run on the host for the sandboxed code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sage_jax.envs.appworld.lite.state import State
from sage_jax.envs.appworld.twin.base import Row
from sage_jax.sandbox.interpreter import CallFault

ACCOUNTS = ("simple_note", "todoist", "phone", "file_system", "spotify")
MOST_PER_PAGE = 20
APIS: dict[str, dict[str, Callable[..., Any]]] = {app: {} for app in ("supervisor", "api_docs", *ACCOUNTS)}
NOTE, PROJECT, TASK = "simple_note.Note", "todoist.Project", "todoist.Task"
CONTACT, ALARM, FILE, FOLDER = "phone.Contact", "phone.Alarm", "file_system.File", "file_system.Directory"
SONG, OWNED, PLAYLIST = "spotify.Song", "spotify.UserLibrarySong", "spotify.Playlist"


def call(state: State, app: str, name: str, arguments: Mapping[str, Any]) -> Any:
    """Answers a call.

    Raises:
      CallFault: no such API, wrong arguments, no valid token, or nothing there.
    """
    function = APIS.get(app, {}).get(name)
    if function is None:
        raise CallFault(f"there is no API {name!r} in the app {app!r}")
    try:
        bound = inspect.signature(function).bind(state, **arguments)
    except TypeError as error:
        raise CallFault(f"{app}.{name}: {error}") from error
    if "access_token" in arguments and arguments["access_token"] != _token(app):
        raise CallFault("you are not authorized to access this app, or your access token is not valid")
    try:
        return function(*bound.args, **bound.kwargs)
    except (TypeError, ValueError, AttributeError) as error:
        raise CallFault(f"{app}.{name}: an argument has the wrong type ({error})") from error


def api(app: str) -> Callable[[Callable], Callable]:
    """Registers a function as an API of an app."""

    def register(function: Callable) -> Callable:
        APIS[app][function.__name__] = function
        return function

    return register


def _token(app: str) -> str:
    return f"{app}-token"


def _login(app: str) -> None:
    def login(state: State, username: str, password: str) -> Row:
        """Log in; the username is the email address, with the phone the phone number."""
        right = state.person.phone_number if app == "phone" else state.person.email
        if (username, password) != (right, state.person.password):
            raise CallFault("invalid credentials")
        return {"access_token": _token(app), "token_type": "Bearer"}

    APIS[app]["login"] = login


for _app in ACCOUNTS:
    _login(_app)


def _page(rows: list[Row], page_index: int, page_limit: int) -> list[Row]:
    if page_index < 0 or page_limit not in range(1, MOST_PER_PAGE + 1):
        raise CallFault(f"page_index must be 0 or more, page_limit from 1 to {MOST_PER_PAGE}")
    return rows[page_index * page_limit : (page_index + 1) * page_limit]


def _row(state: State, model: str, number: int) -> Row:
    row = state.tables.get(model, {}).get(number)
    if row is None:
        raise CallFault(f"there is no {model.rpartition('.')[2].lower()} with the id {number}")
    return row


def _update(row: Row, **fields: Any) -> Row:
    row.update({name: value for name, value in fields.items() if value is not None})
    return {"message": "updated"}


@api("supervisor")
def show_account_passwords(state: State) -> list[Row]:
    """Show the passwords of the supervisor's accounts."""
    return [{"account_name": app, "password": state.person.password} for app in ACCOUNTS]


@api("supervisor")
def show_profile(state: State) -> Row:
    """Show who the supervisor is."""
    person = state.person
    return {key: getattr(person, key) for key in ("first_name", "last_name", "email", "phone_number")}


@api("supervisor")
def show_active_task(state: State) -> Row:
    """Show the task."""
    return {"instruction": state.task.instruction, "status": (state.completed or {}).get("status")}


@api("supervisor")
def complete_task(state: State, answer: Any = None, status: str = "success") -> Row:
    """Say that the task is done, with its answer if it asks for one."""
    if status not in ("success", "fail"):
        raise CallFault("status must be 'success' or 'fail'")
    state.completed = {"status": status, "answer": answer}
    return {"message": "the task is completed"}


@api("api_docs")
def show_app_descriptions(state: State) -> list[Row]:
    """Show the apps."""
    return [{"name": app} for app in APIS]


@api("api_docs")
def show_api_descriptions(state: State, app_name: str) -> list[Row]:
    """Show the APIs of an app."""
    return [{"name": name, "description": function.__doc__} for name, function in APIS.get(app_name, {}).items()]


@api("api_docs")
def show_api_doc(state: State, app_name: str, api_name: str) -> Row:
    """Show one API with its parameters."""
    function = APIS.get(app_name, {}).get(api_name)
    if function is None:
        raise CallFault(f"there is no API {api_name!r} in the app {app_name!r}")
    parameters = [
        {"name": name, "required": parameter.default is inspect.Parameter.empty}
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]
    ]
    return {"app_name": app_name, "api_name": api_name, "description": function.__doc__, "parameters": parameters}


def _note(number: int, row: Row, *keys: str) -> Row:
    return {"note_id": number, **{key: row[key] for key in ("title", "tags", "pinned", *keys)}}


@api("simple_note")
def search_notes(
    state: State,
    access_token: str,
    query: str = "",
    tags: list | None = None,
    pinned: bool | None = None,
    page_index: int = 0,
    page_limit: int = 5,
) -> list[Row]:
    """Search notes; their content is not shown."""
    rows = [
        _note(number, row)
        for number, row in state.find(NOTE)
        if query.lower() in f"{row['title']} {row['content']}".lower()
        and (not tags or set(tags) & set(row["tags"]))
        and (pinned is None or bool(row["pinned"]) == pinned)
    ]
    return _page(rows, page_index, page_limit)


@api("simple_note")
def show_note(state: State, note_id: int, access_token: str) -> Row:
    """Show a note with its content."""
    return _note(note_id, _row(state, NOTE, note_id), "content")


@api("simple_note")
def create_note(
    state: State, title: str, content: str, access_token: str, tags: list | None = None, pinned: bool = False
) -> Row:
    """Make a note; no two may have one title."""
    if state.find(NOTE, title=title):
        raise CallFault("there is a note with this title")
    number = state.insert(NOTE, title=str(title), content=str(content), tags=list(tags or []), pinned=bool(pinned))
    return {"message": "created", "note_id": number}


@api("simple_note")
def update_note(
    state: State,
    note_id: int,
    access_token: str,
    title: str | None = None,
    content: str | None = None,
    tags: list | None = None,
    pinned: bool | None = None,
) -> Row:
    """Change a note."""
    return _update(_row(state, NOTE, note_id), title=title, content=content, tags=tags, pinned=pinned)


@api("simple_note")
def delete_note(state: State, note_id: int, access_token: str) -> Row:
    """Delete a note."""
    _row(state, NOTE, note_id)
    del state.tables[NOTE][note_id]
    return {"message": "deleted"}


@api("todoist")
def show_projects(
    state: State, access_token: str, query: str = "", page_index: int = 0, page_limit: int = 5
) -> list[Row]:
    """Show projects."""
    rows = [{"project_id": n, **row} for n, row in state.find(PROJECT) if query.lower() in row["name"].lower()]
    return _page(rows, page_index, page_limit)


def _task(number: int, row: Row) -> Row:
    return {"task_id": number, **{key: row.get(key) for key in ("title", "priority", "is_completed", "project_id")}}


@api("todoist")
def show_tasks(state: State, project_id: int, access_token: str, is_completed: bool | None = None) -> Row:
    """Show the tasks of a project."""
    _row(state, PROJECT, project_id)
    rows = [_task(number, row) for number, row in state.find(TASK, project_id=project_id)]
    return {
        "no_section_tasks": [row for row in rows if is_completed in (None, row["is_completed"])],
        "sections": [],
    }


@api("todoist")
def create_task(state: State, project_id: int, title: str, access_token: str, priority: str = "medium") -> Row:
    """Make a task in a project."""
    _row(state, PROJECT, project_id)
    order = len(state.find(TASK, project_id=project_id))
    fields = {"title": str(title), "priority": priority, "is_completed": False, "order_index": order}
    return {"message": "created", "task_id": state.insert(TASK, project_id=project_id, **fields)}


@api("todoist")
def update_task(
    state: State,
    task_id: int,
    access_token: str,
    title: str | None = None,
    priority: str | None = None,
    is_completed: bool | None = None,
) -> Row:
    """Change a task."""
    return _update(_row(state, TASK, task_id), title=title, priority=priority, is_completed=is_completed)


@api("todoist")
def delete_task(state: State, task_id: int, access_token: str) -> Row:
    """Delete a task."""
    _row(state, TASK, task_id)
    del state.tables[TASK][task_id]
    return {"message": "deleted"}


@api("phone")
def search_contacts(
    state: State,
    access_token: str,
    query: str = "",
    relationship: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
) -> list[Row]:
    """Search contacts."""
    rows = [
        {"contact_id": number, **row}
        for number, row in state.find(CONTACT)
        if query.lower() in f"{row['first_name']} {row['last_name']} {row['email']}".lower()
        and relationship in (None, *row["relationships"])
    ]
    return _page(rows, page_index, page_limit)


@api("phone")
def show_alarms(state: State, access_token: str, page_index: int = 0, page_limit: int = 5) -> list[Row]:
    """Show alarms."""
    return _page([{"alarm_id": number, **row} for number, row in state.find(ALARM)], page_index, page_limit)


@api("phone")
def update_alarm(
    state: State,
    alarm_id: int,
    access_token: str,
    time: str | None = None,
    label: str | None = None,
    enabled: bool | None = None,
) -> Row:
    """Change an alarm."""
    return _update(_row(state, ALARM, alarm_id), time=time, label=label, enabled=enabled)


def _path(state: State, path: str) -> str:
    home = f"/home/{state.person.first_name.lower()}"
    return home + path[1:] if path.startswith("~/") else path


def _file(state: State, path: str) -> tuple[int, Row]:
    found = state.find(FILE, path=_path(state, path))
    if not found:
        raise CallFault(f"there is no file {path}")
    return found[0]


@api("file_system")
def show_directory(
    state: State,
    access_token: str,
    directory_path: str = "/",
    substring: str = "",
    entry_type: str = "all",
    recursive: bool = True,
) -> list[str]:
    """Show the paths in a folder."""
    folder = _path(state, directory_path).rstrip("/") + "/"
    if not state.find(FOLDER, path=folder):
        raise CallFault(f"there is no folder {directory_path}")
    paths = []
    for kind, model in (("files", FILE), ("directories", FOLDER)):
        if entry_type in ("all", kind):
            paths += [row["path"] for _, row in state.find(model) if row["path"].startswith(folder)]
    below = [path for path in paths if path != folder and substring.lower() in path.lower()]
    return sorted(path for path in below if recursive or "/" not in path[len(folder) :].rstrip("/"))


@api("file_system")
def show_file(state: State, file_path: str, access_token: str) -> Row:
    """Show a file with its content."""
    number, row = _file(state, file_path)
    return {"file_id": number, "path": row["path"], "content": row["content"]}


@api("file_system")
def create_file(state: State, file_path: str, access_token: str, content: str = "", overwrite: bool = False) -> Row:
    """Make a file."""
    path = _path(state, file_path)
    found = state.find(FILE, path=path)
    if found and not overwrite:
        raise CallFault(f"there is a file {file_path}")
    if not state.find(FOLDER, path=path.rpartition("/")[0] + "/"):
        raise CallFault(f"there is no folder for {file_path}")
    if found:
        found[0][1]["content"] = str(content)
    else:
        state.insert(FILE, path=path, content=str(content))
    return {"message": "created", "file_path": path}


@api("file_system")
def delete_file(state: State, file_path: str, access_token: str) -> Row:
    """Delete a file."""
    del state.tables[FILE][_file(state, file_path)[0]]
    return {"message": "deleted"}


def _song(state: State, number: int) -> Row:
    row = _row(state, SONG, number)
    artists = [{"id": artist, "name": _row(state, "spotify.Artist", artist)["name"]} for artist in row["artist_ids"]]
    return {"song_id": number, "title": row["title"], "duration": row["duration"], "artists": artists}


@api("spotify")
def show_song_library(state: State, access_token: str, page_index: int = 0, page_limit: int = 5) -> list[Row]:
    """Show the songs of the library."""
    return _page([_song(state, row["song_id"]) for _, row in state.find(OWNED)], page_index, page_limit)


@api("spotify")
def show_song(state: State, song_id: int) -> Row:
    """Show a song."""
    return {**_song(state, song_id), "genre": _row(state, SONG, song_id)["genre"]}


@api("spotify")
def follow_artist(state: State, artist_id: int, access_token: str) -> Row:
    """Follow an artist."""
    _row(state, "spotify.Artist", artist_id)
    if state.find("spotify.UserArtistFollowing", artist_id=artist_id):
        raise CallFault("you follow this artist already")
    state.insert("spotify.UserArtistFollowing", artist_id=artist_id)
    return {"message": "followed"}


@api("spotify")
def create_playlist(state: State, title: str, access_token: str, is_public: bool = False) -> Row:
    """Make a playlist."""
    return {
        "message": "created",
        "playlist_id": state.insert(PLAYLIST, title=str(title), is_public=bool(is_public)),
    }


@api("spotify")
def add_song_to_playlist(state: State, playlist_id: int, song_id: int, access_token: str) -> Row:
    """Add a song to a playlist."""
    _row(state, PLAYLIST, playlist_id)
    _row(state, SONG, song_id)
    if state.find("spotify.PlaylistSong", playlist_id=playlist_id, song_id=song_id):
        raise CallFault("the song is in the playlist already")
    state.insert("spotify.PlaylistSong", playlist_id=playlist_id, song_id=song_id)
    return {"message": "added"}
