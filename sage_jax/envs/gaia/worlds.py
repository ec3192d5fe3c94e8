"""Generated worlds for the GAIA twin: files in several formats, pages that link to each other, facts in both.

A world is a function of its spec alone. Its facts are split so that levels mean something: who works where and what
was sold lies in files, what things cost and who leads a team lies on pages.
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

    def __post_init__(self) -> None:
        for name in self.formats or ("",):
            if name not in FORMATS:
                raise ConfigError(f"gaia formats contains {name!r}: expected some of {', '.join(FORMATS)}")

    @property
    def key(self) -> str:
        """The world's folder, and its name on the server."""
        return f"gaia-{self.seed}-{self.index}-{'-'.join(self.formats)}-v{VERSION}"

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> WorldSpec:
        """Reads a spec from a task's payload. Raises DataError when it is none."""
        try:
            return cls(int(data["seed"]), int(data["index"]), tuple(data["formats"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"world {data!r}: expected seed, index and formats") from error


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
        things: dict[str, tuple[str, dict[str, Any]]] = {}
        for product in self.products:
            facts = {"Price": product.price, "Launch year": product.year, "Maker": product.maker}
            things[f"product-{product.name.lower()}.html"] = (f"Product {product.name}", facts)
        for team in self.teams:
            facts = {"Lead": team.lead, "Budget": team.budget, "Floor": team.floor}
            things[f"team-{team.name.lower()}.html"] = (f"Team {team.name}", facts)
        links = "".join(f'<li><a href="{path}">{title}</a></li>' for path, (title, _) in things.items())
        pages = {"": Resource(_document("Company", f"<ul>{links}</ul>"))}
        for path, (title, facts) in things.items():
            rows = "".join(f"<tr><th>{name}</th><td>{html.escape(str(v))}</td></tr>" for name, v in facts.items())
            pages[path] = Resource(_document(title, f'<table>{rows}</table><p><a href="./">Company</a></p>'))
        return pages

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
