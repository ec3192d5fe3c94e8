"""Questions about generated worlds: three levels by the number of tool calls they need, three kinds of answers.

    level 1   one file                                              1 call
    level 2   a file, then the page of what was found in it         3 calls
    level 3   a file, then the pages of two things found in it      5 calls
A calculation in python is a call more, where there is python.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable

from sage_jax.envs.gaia.dataset import LEVELS
from sage_jax.envs.gaia.worlds import REGIONS, Product, World, WorldSpec, make_world
from sage_jax.errors import ConfigError
from sage_jax.seeding import derive_seed
from sage_jax.types import Task

SPLITS = ("train", "valid", "test")
KINDS = ("number", "string", "list")
ROOT = "{root}"  # stands for the address of the world's pages in an expert's actions


@dataclasses.dataclass(frozen=True)
class TwinOptions:
    """What a set of generated questions depends on.

    Attributes:
      seed: of everything; worlds of different seeds have nothing in common.
      train, valid, test: worlds of each split; every world has one question of each level and kind, nine in all.
      formats: of the files.
      layouts: of the worlds, in turn.
    """

    seed: int = 0
    train: int = 30
    valid: int = 6
    test: int = 6
    formats: tuple[str, ...] = ("csv", "json", "txt")
    layouts: tuple[str, ...] = ("plain",)

    def __post_init__(self) -> None:
        for layout in self.layouts or ("",):
            WorldSpec(self.seed, 0, self.formats, layout)  # checks both
        for split in SPLITS:
            if getattr(self, split) < 0:
                raise ConfigError(f"gaia {split}={getattr(self, split)}: a number of worlds is 0 or more")


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, its answer, and the calls that lead to it (without the answer's)."""

    text: str
    answer: str
    calls: tuple[str, ...]


def make_tasks(options: TwinOptions) -> dict[str, list[Task]]:
    """Returns the questions of each split."""
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    first = 0
    for split in SPLITS:
        for index in range(first, first + getattr(options, split)):
            layout = options.layouts[index % len(options.layouts)]
            tasks[split] += world_tasks(WorldSpec(options.seed, index, options.formats, layout), split)
        first += getattr(options, split)
    return tasks


def world_tasks(spec: WorldSpec, split: str) -> list[Task]:
    """Returns one question of each level and kind about a world."""
    world = make_world(spec)
    tasks = []
    for (level, kind), make in _MAKERS.items():
        question = make(world, random.Random(derive_seed(spec.seed, "gaia/question", spec.key, level, kind)))
        payload = {
            "question": question.text,
            "answer": question.answer,
            "level": level,
            "kind": kind,
            "world": dataclasses.asdict(spec),
            "expert": [*question.calls, f"answer[{question.answer}]"],
        }
        name = f"gaia-twin-{split}-{spec.key}-level{level}-{kind}"
        tasks.append(Task(name, "gaia", split, f"level{level}", payload))
    return tasks


def _count_team(world: World, rng: random.Random) -> Question:
    team = rng.choice(world.people).team
    answer = sum(person.team == team for person in world.people)
    text = f"According to {world.staff_file}, how many people are in team {team}?"
    return Question(text, str(answer), (_read(world.staff_file),))


def _city_of_person(world: World, rng: random.Random) -> Question:
    person = rng.choice(world.people)
    text = f"According to {world.staff_file}, in which city does {person.name} work?"
    return Question(text, person.city, (_read(world.staff_file),))


def _cities_of_team(world: World, rng: random.Random) -> Question:
    teams = [team.name for team in world.teams if len({p.city for p in world.people if p.team == team.name}) > 1]
    team = rng.choice(teams)
    cities = sorted({person.city for person in world.people if person.team == team})
    text = (
        f"According to {world.staff_file}, in which cities do people of team {team} work? "
        "Give each city once, in alphabetical order, separated by commas."
    )
    return Question(text, ", ".join(cities), (_read(world.staff_file),))


def _revenue(world: World, rng: random.Random) -> Question:
    product, region = rng.choice(world.products), rng.choice(REGIONS)
    text = (
        f"{world.sales_file} lists units sold, and the company's pages tell prices. "
        f"What was the revenue of {product.name} in region {region}?"
    )
    calls = (_read(world.sales_file), *_look_up(world, f"Product {product.name}"))
    work = _python(f"print({product.units[region]} * {product.price})")
    return Question(text, str(product.units[region] * product.price), (*calls, work))


def _lead_of_person(world: World, rng: random.Random) -> Question:
    person = rng.choice(world.people)
    team = next(team for team in world.teams if team.name == person.team)
    text = f"Who leads the team that {person.name} belongs to? See {world.staff_file} and the company's pages."
    return Question(text, team.lead, (_read(world.staff_file), *_look_up(world, f"Team {team.name}")))


def _page_of_best(world: World, rng: random.Random) -> Question:
    region = rng.choice(REGIONS)
    best = _best(world, region, 1)[0]
    text = (
        f"Which product sold the most units in region {region} according to {world.sales_file}? "
        "Give its maker and its launch year, separated by a comma; the company's pages tell them."
    )
    return Question(
        text, f"{best.maker}, {best.year}", (_read(world.sales_file), *_look_up(world, f"Product {best.name}"))
    )


def _revenue_difference(world: World, rng: random.Random) -> Question:
    region, (first, second), calls = _two_best(world, rng)
    revenues = [product.units[region] * product.price for product in (first, second)]
    text = (
        f"Take the two products with the most units sold in region {region} in {world.sales_file}. "
        "By how much do their revenues there differ, at the prices on the company's pages?"
    )
    work = _python(f"print(abs({revenues[0]} - {revenues[1]}))")
    return Question(text, str(abs(revenues[0] - revenues[1])), (*calls, work))


def _dearer_of_two(world: World, rng: random.Random) -> Question:
    region, pair, calls = _two_best(world, rng)
    dearer = max(pair, key=lambda product: (product.price, product.name))
    text = (
        f"Of the two products with the most units sold in region {region} in {world.sales_file}, which one has the "
        "higher price on the company's pages? If the prices are equal, the one later in the alphabet."
    )
    return Question(text, dearer.name, calls)


def _years_of_two(world: World, rng: random.Random) -> Question:
    region, pair, calls = _two_best(world, rng)
    years = sorted(product.year for product in pair)
    text = (
        f"Give the launch years of the two products with the most units sold in region {region} in "
        f"{world.sales_file}, the earlier first, separated by a comma. The company's pages tell the years."
    )
    return Question(text, f"{years[0]}, {years[1]}", calls)


def _two_best(world: World, rng: random.Random) -> tuple[str, list[Product], tuple[str, ...]]:
    region = rng.choice(REGIONS)
    pair = _best(world, region, 2)
    calls = (
        _read(world.sales_file),
        *(call for product in pair for call in _look_up(world, f"Product {product.name}")),
    )
    return region, pair, calls


def _best(world: World, region: str, count: int) -> list[Product]:
    """Returns the products with the most units; no two have sold the same number in a region."""
    return sorted(world.products, key=lambda product: -product.units[region])[:count]


def _read(name: str) -> str:
    return f"read_file[{name}]"


def _look_up(world: World, title: str) -> tuple[str, str]:
    return f"search[{title}]", f"open_page[{ROOT}{world.path(title)}]"


def _python(code: str) -> str:
    return f"python[{json.dumps({'code': code})}]"


_MAKERS: dict[tuple[int, str], Callable[[World, random.Random], Question]] = {
    (1, "number"): _count_team,
    (1, "string"): _city_of_person,
    (1, "list"): _cities_of_team,
    (2, "number"): _revenue,
    (2, "string"): _lead_of_person,
    (2, "list"): _page_of_best,
    (3, "number"): _revenue_difference,
    (3, "string"): _dearer_of_two,
    (3, "list"): _years_of_two,
}
assert {level for level, _ in _MAKERS} == set(LEVELS)
