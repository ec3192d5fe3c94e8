"""Scenarios about music: the app that is never seen in training."""

from __future__ import annotations

import random

from sage_jax.envs.appworld.twin.base import Change, Draft, Person, Row, Template
from sage_jax.envs.appworld.twin.words import FIRST_NAMES, GENRES, LAST_NAMES, THINGS, TOPICS

ARTIST, SONG, OWNED = "spotify.Artist", "spotify.Song", "spotify.UserLibrarySong"
FOLLOWING, PLAYLIST, ENTRY = "spotify.UserArtistFollowing", "spotify.Playlist", "spotify.PlaylistSong"
_SONGS = """def my_songs(genre):
    token = open_app("spotify")
    ids = [song["song_id"] for song in all_pages(apis.spotify.show_song_library, access_token=token)]
    songs = [apis.spotify.show_song(song_id=song_id) for song_id in ids]
    return token, [song for song in songs if song["genre"] == genre]

"""


def catalogue(rng: random.Random) -> dict[str, list[Row]]:
    """Returns the artists and songs that everybody sees: 20 artists of five genres with four songs each."""
    names = rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES], 20)
    titles = rng.sample([f"{topic} {thing}".title() for topic in TOPICS for thing in THINGS], 80)
    durations = rng.sample(range(90, 420), 80)  # no two alike, so that "the longest" is one
    artists = [{"name": name, "genre": GENRES[i % len(GENRES)]} for i, name in enumerate(names)]
    songs = [
        {"title": title, "artist": artists[i % 20]["name"], "genre": artists[i % 20]["genre"], "duration": duration}
        for i, (title, duration) in enumerate(zip(titles, durations, strict=True))
    ]
    return {ARTIST: artists, SONG: songs}


def _fill(person: Person, rng: random.Random) -> tuple[list[str], dict[str, list[Row]]]:
    """Gives a person 3 to 5 songs of each genre; returns three genres and the songs of each."""
    songs = catalogue(random.Random(CATALOGUE_SEED))[SONG]
    owned: dict[str, list[Row]] = {}
    for genre in GENRES:
        owned[genre] = rng.sample([song for song in songs if song["genre"] == genre], rng.randint(3, 5))
        for song in owned[genre]:
            person.add(OWNED, song=song["title"])
    return rng.sample(GENRES, 3), owned


CATALOGUE_SEED = 11


def _count(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    genres, owned = _fill(person, rng)
    return tuple(
        Draft(f"How many {genre} songs are in my Spotify song library?", len(owned[genre]), f"count_songs({genre!r})")
        for genre in genres
    )


def _longest(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    genres, owned = _fill(person, rng)
    return tuple(
        Draft(
            f"What is the title of the longest {genre} song in my Spotify song library?",
            max(owned[genre], key=lambda song: song["duration"])["title"],
            f"longest_song({genre!r})",
        )
        for genre in genres
    )


def _follow(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    genres, owned = _fill(person, rng)
    drafts = []
    for genre in genres:
        artists = sorted({song["artist"] for song in owned[genre]})
        changes = tuple(Change(FOLLOWING, "added", {"artist_id": {"model": ARTIST, "name": name}}) for name in artists)
        words = f"Follow every artist on Spotify of whom I have a {genre} song in my song library."
        drafts.append(Draft(words, None, f"follow_artists({genre!r})", changes))
    return tuple(drafts)


def _playlist(person: Person, rng: random.Random) -> tuple[Draft, ...]:
    genres, owned = _fill(person, rng)
    drafts = []
    for genre, topic in zip(genres, rng.sample(TOPICS, 3), strict=True):
        title = f"{genre} for {topic}"
        entries = (
            Change(ENTRY, "added", {"song_id": {"model": SONG, "title": song["title"]}}) for song in owned[genre]
        )
        changes = (Change(PLAYLIST, "added", {"title": title, "is_public": False}), *entries)
        words = f"Make a private Spotify playlist '{title}' with all {genre} songs of my song library."
        drafts.append(Draft(words, None, f"make_playlist({genre!r}, {title!r})", changes))
    return tuple(drafts)


TEMPLATES = (
    Template(
        "song_count", ("spotify",), 1, _SONGS + "def count_songs(genre):\n    return len(my_songs(genre)[1])", _count
    ),
    Template(
        "song_longest",
        ("spotify",),
        2,
        _SONGS
        + """def longest_song(genre):
    return max(my_songs(genre)[1], key=lambda song: song["duration"])["title"]""",
        _longest,
    ),
    Template(
        "artist_follow",
        ("spotify",),
        2,
        _SONGS
        + """def follow_artists(genre):
    token, songs = my_songs(genre)
    for artist in sorted({artist["id"] for song in songs for artist in song["artists"]}):
        apis.spotify.follow_artist(artist_id=artist, access_token=token)""",
        _follow,
    ),
    Template(
        "playlist_make",
        ("spotify",),
        3,
        _SONGS
        + """def make_playlist(genre, title):
    token, songs = my_songs(genre)
    playlist = apis.spotify.create_playlist(title=title, is_public=False, access_token=token)["playlist_id"]
    for song in songs:
        apis.spotify.add_song_to_playlist(playlist_id=playlist, song_id=song["song_id"], access_token=token)""",
        _playlist,
    ),
)
