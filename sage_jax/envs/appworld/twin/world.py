"""Makes a whole world: people, their data, tasks, splits. The same options give the same world on any machine."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from sage_jax.envs.appworld.twin import files, music, notes, phone, todos
from sage_jax.envs.appworld.twin.base import OPEN, PAGES, Person, Row, Solution, Template, TwinTask
from sage_jax.envs.appworld.twin.words import FIRST_NAMES, LAST_NAMES, NAME_ENDINGS
from sage_jax.errors import ConfigError
from sage_jax.seeding import derive_seed

VERSION = 1
DATETIME = "2024-04-16T12:00:00"
SPLITS = ("train", "dev", "test_normal", "test_challenge")
SEEN = (*notes.TEMPLATES, *todos.TEMPLATES, *phone.TEMPLATES, *files.TEMPLATES)
CHALLENGE = music.TEMPLATES
TEMPLATES: dict[str, Template] = {template.name: template for template in (*SEEN, *CHALLENGE)}


@dataclasses.dataclass(frozen=True)
class WorldOptions:
    """How large a world is. A scenario is one template filled once; it holds three tasks of one person.

    Attributes:
      seed: of everything random.
      train: scenarios of each template whose app is seen in training.
      dev: scenarios in all, of those templates in turn.
      test_normal: likewise.
      test_challenge: scenarios of each template of the app that is never seen in training.
    """

    seed: int = 0
    train: int = 2
    dev: int = 6
    test_normal: int = 12
    test_challenge: int = 3

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < (0 if field.name == "seed" else 1):
                raise ConfigError(f"world option {field.name} is {getattr(self, field.name)}, expected 1 or more")


@dataclasses.dataclass(frozen=True)
class World:
    """A generated world.

    Attributes:
      people: one for each scenario, so that no task's data is in another's way.
      shared: rows that belong to nobody (artists, songs).
      tasks: all of them.
      splits: split -> task ids, a scenario's three in a row.
      templates: scenario id -> name of its template.
    """

    options: WorldOptions
    people: tuple[Person, ...]
    shared: dict[str, list[Row]]
    tasks: tuple[TwinTask, ...]
    splits: dict[str, tuple[str, ...]]
    templates: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Returns the world as plain data, for the script that puts it into the engine."""
        return {"version": VERSION, "datetime": DATETIME, **dataclasses.asdict(self)}


def make_world(options: WorldOptions | None = None) -> World:
    """Returns the world that the options describe."""
    options = options or WorldOptions()
    most, wanted = len(FIRST_NAMES) * len(NAME_ENDINGS), sum(map(len, _plan(options).values()))
    if wanted > most:
        raise ConfigError(f"the world options ask for {wanted} scenarios; there are names for {most} people")
    people: list[Person] = []
    tasks: list[TwinTask] = []
    splits: dict[str, tuple[str, ...]] = {}
    templates: dict[str, str] = {}
    for split, plan in _plan(options).items():
        ids = []
        for number, template in enumerate(plan):
            seed = derive_seed(options.seed, "appworld/scenario", split, template.name, number)
            rng = random.Random(seed)
            scenario = f"{seed & 0xFFFFFFF:07x}"
            person = make_person(len(people), rng)
            people.append(person)
            templates[scenario] = template.name
            functions = solution_functions(template)
            for position, draft in enumerate(template.make(person, rng), start=1):
                solution = Solution(functions, draft.call)
                ids.append(f"{scenario}_{position}")
                tasks.append(
                    TwinTask(
                        ids[-1],
                        len(people) - 1,
                        draft.instruction,
                        template.difficulty,
                        draft.answer,
                        draft.changes,
                        solution,
                    )
                )
        splits[split] = tuple(ids)
    shared = music.catalogue(random.Random(music.CATALOGUE_SEED))
    return World(options, tuple(people), shared, tuple(tasks), splits, templates)


def _plan(options: WorldOptions) -> dict[str, Sequence[Template]]:
    """Returns the template of each scenario, by split."""
    return {
        "train": [template for template in SEEN for _ in range(options.train)],
        "dev": [SEEN[i * 5 % len(SEEN)] for i in range(options.dev)],
        "test_normal": [SEEN[(i * 7 + 3) % len(SEEN)] for i in range(options.test_normal)],
        "test_challenge": [template for template in CHALLENGE for _ in range(options.test_challenge)],
    }


def solution_functions(template: Template, *, pages: bool = True) -> str:
    """Returns the expert's definitions: the log-in, the reading of pages where it is needed, and the template's own."""
    parts = [OPEN, PAGES] if pages and "all_pages(" in template.functions else [OPEN]
    return "\n\n".join([*parts, template.functions])


def make_person(number: int, rng: random.Random) -> Person:
    """Returns a person without data; two numbers give two first names."""
    ending, first_name = divmod(number, len(FIRST_NAMES))
    first, last = FIRST_NAMES[first_name] + NAME_ENDINGS[ending], rng.choice(LAST_NAMES)
    return Person(
        first_name=first,
        last_name=last,
        email=f"{first}.{last}.{number}@example.com".lower(),
        phone_number=f"444{number:07d}",
        password=f"pw-{rng.getrandbits(40):010x}",
    )
