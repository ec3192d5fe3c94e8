"""Generated worlds for the GAIA twin: files in several formats, pages that link to each other, facts in both.

A world is a function of its spec alone. Its facts are split so that levels mean something: who works where and what
was sold lies in files, what things cost and who leads a team lies on pages. How a page is to be found depends on the
world's layout, which no question tells:

    plain      pages are named after what they are about, and the search finds them
    numbered   the search finds them, their addresses tell nothing
    stale      they are named after what they are about, but the search finds last year's copies alone, with other facts
"""

from __future__ import annotations

import csv
import dataclasses
import html
import importlib
import json
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sage_jax.envs.webwalker.sites import Resource
from sage_jax.errors import ConfigError, DataError
from sage_jax.seeding import derive_seed

VERSION = 1
FORMATS = ("csv", "json", "txt", "xlsx", "docx")  # the last two need the extra `files`
LAYOUTS = ("plain", "numbered", "stale")
_OLD = "old/"  # folder of last year's copies
_FIRST = "Ada Bruno Clara Dario Edith Felix Greta Hugo Irma Jonas Katja Leon Mina Nils Olga Paul".split()
_LAST = "Brandt Castel Dumont Ekberg Fabre Grau Holm Ivers Jansen Keller Lindt Moreau Novak Olsen Petit Roth".split()
_TEAMS = "Atlas Borealis Cobalt Delta Ember Falcon Garnet Helix".split()
_CITIES = "Bergen Cadiz Delft Ghent Izmir Kyoto Lima Malmo Nantes Porto".split()
_PRODUCTS = "Anvil Beacon Compass Dynamo Easel Furnace Gimbal Hammock Inkwell Jigsaw Kettle Lantern".split()
_MAKERS = "Arcadia Borel Cresta Dunham Elmore Fenwick".split()
REGIONS = ("North", "South", "East", "West")


@dataclasses.dataclass(frozen=True)
class WorldSpec:
    """What a world depends on."""

    seed: int
    index: int
    formats: tuple[str, ...] = ("csv", "json", "txt")
    layout: str = "plain"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f"gaia layout={self.layout!r}: expected one of {', '.join(LAYOUTS)}")
        for name in self.formats or ("",):
            if name not in FORMATS:
                raise ConfigError(f"gaia formats contains {name!r}: expected some of {', '.join(FORMATS)}")

    @property
    def key(self) -> str:
        """The world's folder, and its name on the server."""
        layout = "" if self.layout == "plain" else f"-{self.layout}"
        return f"gaia-{self.seed}-{self.index}-{'-'.join(self.formats)}{layout}-v{VERSION}"

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> WorldSpec:
        """Reads a spec from a task's payload. Raises DataError when it is none."""
        try:
            return cls(int(data["seed"]), int(data["index"]), tuple(data["formats"]), str(data["layout"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"world {data!r}: expected seed, index, formats and layout") from error


@dataclasses.dataclass(frozen=True)
class Person:
    """A row of the staff file."""

    name: str
    team: str
    city: str
    age: int


@dataclasses.dataclass(frozen=True)
class Product:
    """A product: its page tells price, year and maker; the sales file, the units of each region."""

    name: str
    price: int
    year: int
    maker: str
    units: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Team:
    """A team: its page tells lead, budget and floor."""

    name: str
    lead: str
    budget: int
    floor: int


@dataclasses.dataclass(frozen=True)
class World:
    """One world. `staff_file` and `sales_file` are the names of its files."""

    spec: WorldSpec
    people: tuple[Person, ...]
    products: tuple[Product, ...]
    teams: tuple[Team, ...]
    staff_file: str
    sales_file: str

    def pages(self) -> dict[str, Resource]:
        """Returns the pages by path."""
        things = self._things()
        links = "".join(f'<li><a href="{self.path(title)}">{title}</a></li>' for title in things)
        pages = {"": Resource(_document("Company", f"<ul>{links}</ul>"))}
        for title, facts in things.items():
            pages[self.path(title)] = _fact_page(title, facts)
        if self.spec.layout == "stale":
            rng = random.Random(derive_seed(self.spec.seed, "gaia/old", self.spec.key))
            for title, facts in things.items():
                old = {name: _other(value, rng) for name, value in facts.items()}
                pages[_OLD + self.path(title)] = _fact_page(title, old, root="../")
        return pages

    def path(self, title: str) -> str:
        """Returns where the page of a product or team is."""
        if self.spec.layout == "numbered":
            return f"p{list(self._things()).index(title)}.html"
        return title.lower().replace(" ", "-") + ".html"

    def searched(self, path: str) -> bool:
        """Whether the search knows the page at a path."""
        return self.spec.layout != "stale" or path.startswith(_OLD)

    def _things(self) -> dict[str, dict[str, str | int]]:
        """Returns the facts on the page of each product and team."""
        things: dict[str, dict[str, str | int]] = {}
        for product in self.products:
            facts = {"Price": product.price, "Launch year": product.year, "Maker": product.maker}
            things[f"Product {product.name}"] = facts
        for team in self.teams:
            things[f"Team {team.name}"] = {"Lead": team.lead, "Budget": team.budget, "Floor": team.floor}
        return things

    def write_files(self, folder: pathlib.Path) -> dict[str, str]:
        """Writes the files into a folder; returns paths by name. Raises ConfigError when a writer is not installed."""
        folder.mkdir(parents=True, exist_ok=True)
        staff = [["name", "team", "city", "age"], *([p.name, p.team, p.city, p.age] for p in self.people)]
        sales = [["product", *REGIONS], *([p.name, *(p.units[r] for r in REGIONS)] for p in self.products)]
        paths = {}
        for name, rows in {self.staff_file: staff, self.sales_file: sales}.items():
            path = folder / name
            try:
                _WRITERS[path.suffix[1:]](path, rows)
            except ImportError as error:
                raise ConfigError(
                    f"gaia formats: writing {path.suffix} needs the package {error.name}: pip install sage-jax[files]"
                ) from error
            paths[name] = str(path)
        return paths


def make_world(spec: WorldSpec) -> World:
    """Returns the world of a spec."""
    rng = random.Random(derive_seed(spec.seed, "gaia/world", spec.key))
    names = [f"{first} {last}" for first, last in zip(rng.sample(_FIRST, 16), rng.sample(_LAST, 16), strict=True)]
    team_names = rng.sample(_TEAMS, 4)
    people = [Person(name, rng.choice(team_names), rng.choice(_CITIES), rng.randrange(21, 66)) for name in names[:12]]
    products = []
    sold = {region: rng.sample(range(10, 900), 6) for region in REGIONS}  # all different
    for number, name in enumerate(rng.sample(_PRODUCTS, 6)):
        units = {region: sold[region][number] for region in REGIONS}
        products.append(Product(name, rng.randrange(3, 400), rng.randrange(1990, 2026), rng.choice(_MAKERS), units))
    teams = [Team(name, lead, rng.randrange(10, 900) * 1000, rng.randrange(1, 30)) for name, lead in
             zip(team_names, names[12:], strict=True)]  # fmt: skip
    staff, sales = (f"{stem}.{rng.choice(spec.formats)}" for stem in ("staff", "sales"))
    return World(spec, tuple(people), tuple(products), tuple(teams), staff, sales)


def _other(value: str | int, rng: random.Random) -> str | int:
    """Returns a fact that is no longer true."""
    if isinstance(value, int):
        return value + rng.randrange(1, 100)
    known = _MAKERS if value in _MAKERS else [f"{first} {last}" for first in _FIRST for last in _LAST]
    return rng.choice([name for name in known if name != value])


def _fact_page(title: str, facts: Mapping[str, str | int], root: str = "./") -> Resource:
    rows = "".join(f"<tr><th>{name}</th><td>{html.escape(str(value))}</td></tr>" for name, value in facts.items())
    return Resource(_document(title, f'<table>{rows}</table><p><a href="{root}">Company</a></p>'))


def _document(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>{title}</title>'
    return f"<!doctype html><html><head>{head}</head><body><h1>{title}</h1>{body}</body></html>"


Rows = Sequence[Sequence[Any]]


def _write_csv(path: pathlib.Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def _write_json(path: pathlib.Path, rows: Rows) -> None:
    head, *rest = rows
    path.write_text(json.dumps([dict(zip(head, row, strict=True)) for row in rest]), encoding="utf-8")


def _write_txt(path: pathlib.Path, rows: Rows) -> None:
    head, *rest = rows
    lines = ["; ".join(f"{name}: {cell}" for name, cell in zip(head, row, strict=True)) for row in rest]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_xlsx(path: pathlib.Path, rows: Rows) -> None:
    book = importlib.import_module("openpyxl").Workbook()
    for row in rows:
        book.active.append(list(row))
    book.save(path)


def _write_docx(path: pathlib.Path, rows: Rows) -> None:
    document = importlib.import_module("docx").Document()
    table = document.add_table(rows=0, cols=len(rows[0]))
    for row in rows:
        for cell, value in zip(table.add_row().cells, row, strict=True):
            cell.text = str(value)
    document.save(str(path))


_WRITERS: dict[str, Callable[[pathlib.Path, Rows], None]] = {
    "csv": _write_csv,
    "json": _write_json,
    "txt": _write_txt,
    "xlsx": _write_xlsx,
    "docx": _write_docx,
}
