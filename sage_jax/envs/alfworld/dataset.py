"""Writes a set of generated games once, in the official layout, and finds it again.

The folder's name is a hash of everything the games depend on. It appears under that name only when it is complete, so
a killed run leaves nothing that looks finished, and two runs that make the same games do not disturb each other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import queue
import shutil
import threading
from collections.abc import Callable
from importlib import metadata

from sage_jax.envs.alfworld.game import FAMILIES
from sage_jax.envs.alfworld.games import SPLITS, VERSION, GameMaker, GameOptions
from sage_jax.envs.alfworld.translation import store_translation
from sage_jax.envs.process import WorkerProcess
from sage_jax.errors import DataError

MANIFEST = "manifest.json"
DATA_FOLDER = "json_2.1.1"
TRANSLATIONS = "alfworld-translations"
_GAME_TIMEOUT_S = 600.0

Progress = Callable[[int, int], None]
Job = tuple[str, str, int]


def dataset_name(options: GameOptions) -> str:
    """Returns the folder name of the games that `options` describe, under the installed alfworld."""
    identity = {
        "generator": VERSION,
        "alfworld": metadata.version("alfworld"),
        "options": dataclasses.asdict(options),
    }
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
    return f"alfworld-{digest}"


def ensure_games(
    options: GameOptions, cache: pathlib.Path, *, processes: int = 2, progress: Progress | None = None
) -> pathlib.Path:
    """Returns the folder of the games that `options` describe, making them when they are not in the cache.

    Args:
      options: what the games depend on.
      cache: folder for generated data; grounded games go to its folder `TRANSLATIONS`.
      processes: worker processes that make games; 0 makes them here.
      progress: called with (games made, games wanted) after each game, from one thread at a time.

    Raises:
      DataError: the options admit no games.
      EnvError: a worker failed.
    """
    target = cache / dataset_name(options)
    if (target / MANIFEST).is_file():
        return target
    staging = cache / f".{target.name}.{os.getpid()}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        _make_games(options, staging, cache / TRANSLATIONS, processes, progress or (lambda done, wanted: None))
        try:
            os.rename(staging, target)
        except OSError as error:
            if not (target / MANIFEST).is_file():  # unless another run was faster
                raise DataError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


class GameWriter:
    """Makes games and writes each into the staging folder; lives in a worker process."""

    def __init__(self, options: GameOptions, staging: pathlib.Path, translations: pathlib.Path) -> None:
        """Prepares to make games."""
        self._maker = GameMaker(options)
        self._staging, self._translations = staging, translations

    def write(self, split: str, family: str, index: int) -> dict[str, str | int]:
        """Writes one game; returns its entry in the manifest."""
        made = self._maker.make(split, family, index)
        folder = self._staging / DATA_FOLDER / split / made.folder
        folder.mkdir(parents=True)
        digest = hashlib.sha256()
        for name, content in sorted(made.files.items()):
            (folder / name).write_bytes(content)
            digest.update(content)
        store_translation(self._translations, made.key(), made.translation)
        entry = {"split": split, "family": made.family, "folder": made.folder}
        return {**entry, "expert_steps": made.expert_steps, "sha256": digest.hexdigest()}

    def close(self) -> None:
        """Hands the planner back."""
        self._maker.close()


def _make_games(
    options: GameOptions, staging: pathlib.Path, translations: pathlib.Path, processes: int, progress: Progress
) -> None:
    """Makes every game of every split, then the manifest, into `staging`."""
    jobs = [
        (split, family, index)
        for split, family in itertools.product(SPLITS, FAMILIES)
        for index in range(getattr(options, split))
    ]
    if processes:
        entries = _write_in_workers((options, staging, translations), jobs, processes, progress)
    else:
        writer = GameWriter(options, staging, translations)
        entries = {}
        for job in jobs:
            entries[job] = writer.write(*job)
            progress(len(entries), len(jobs))
        writer.close()
    manifest = {
        "generator": VERSION,
        "alfworld": metadata.version("alfworld"),
        "options": dataclasses.asdict(options),
        "scenes": {split: options.scenes(split) for split in SPLITS},
        "games": [entries[job] for job in jobs],
    }
    staging.mkdir(parents=True, exist_ok=True)
    (staging / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _write_in_workers(settings: tuple, jobs: list[Job], processes: int, progress: Progress) -> dict[Job, dict]:
    """Runs the jobs on worker processes; the first failure ends them all and is raised here."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    results: queue.SimpleQueue = queue.SimpleQueue()
    stop = threading.Event()
    count = min(processes, len(jobs))
    threads = [threading.Thread(target=_serve, args=(settings, waiting, results, stop)) for _ in range(count)]
    for thread in threads:
        thread.start()
    entries: dict[Job, dict] = {}
    try:
        while len(entries) < len(jobs):
            job, outcome = results.get()
            if isinstance(outcome, Exception):
                raise outcome
            entries[job] = outcome
            progress(len(entries), len(jobs))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return entries


def _serve(settings: tuple, waiting: queue.SimpleQueue, results: queue.SimpleQueue, stop: threading.Event) -> None:
    """One thread with one worker: takes jobs until there are none."""
    worker = WorkerProcess(GameWriter, *settings)
    job: Job | None = None
    try:
        worker.start()
        while not stop.is_set():
            job = waiting.get_nowait()
            results.put((job, worker.call("write", *job, timeout_s=_GAME_TIMEOUT_S)))
    except queue.Empty:
        pass
    except Exception as error:  # the edge of the thread: raised by the thread that waits for the results
        results.put((job, error))
    finally:
        worker.close()
