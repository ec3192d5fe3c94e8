"""Generated websites: what each address answers, and where every fact is to be found.

    root ─┬─ featured items                       depth 2
          ├─ section ─┬─ items                    depth 3
          │           └─ group ── items           depth 4
          ├─ archive ─┬─ items of depth 2 and 3, with last year's values (misleading, or what is asked for)
          │           └─ group ── items of depth 4, the same
          └─ broken links, a redirect loop, a page in another language

A site is a function of its spec alone, so that a task carries four values instead of pages.
"""

from __future__ import annotations

import dataclasses
import html
import random
from collections.abc import Mapping, Sequence
from typing import Any

from sage_jax.envs.webwalker import vocabulary as words
from sage_jax.errors import DataError
from sage_jax.seeding import derive_seed

VERSION = 2
FEATURED, SECTION_ITEMS, GROUPS, GROUP_ITEMS = 2, 2, 2, 2


@dataclasses.dataclass(frozen=True)
class SiteSpec:
    """What a site depends on: a kind, a language, and its place in a seed's sequence of sites."""

    kind: str
    lang: str
    seed: int
    index: int

    @property
    def key(self) -> str:
        """The site's folder on the server."""
        return f"{self.kind}-{self.lang}-{self.seed}-{self.index}-v{VERSION}"

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> SiteSpec:
        """Reads a spec from a task's payload. Raises DataError when it is none."""
        try:
            spec = cls(str(data["kind"]), str(data["lang"]), int(data["seed"]), int(data["index"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"site {data!r}: expected kind, lang, seed and index") from error
        if spec.kind not in words.KINDS or spec.lang not in words.LANGUAGES:
            raise DataError(
                f"site {data!r}: kinds are {', '.join(words.KINDS)}, languages {', '.join(words.LANGUAGES)}"
            )
        return spec


@dataclasses.dataclass(frozen=True)
class Resource:
    """What one address answers: a document, or a redirect to `location` (relative to the site's root)."""

    body: str = ""
    status: int = 200
    location: str = ""


@dataclasses.dataclass(frozen=True)
class Item:
    """One item with a page of its own.

    Attributes:
      name: unique on the site.
      path: of its page, relative to the root.
      trail: buttons to click from the root to its page.
      facts: attribute -> value.
      past: the item in last year's edition, which the archive holds: as deep as this one, and at least two clicks.
    """

    name: str
    path: str
    trail: tuple[str, ...]
    facts: Mapping[str, str]
    past: Item | None = None


@dataclasses.dataclass(frozen=True)
class Site:
    """A generated website; `items` are what questions may be asked about."""

    spec: SiteSpec
    name: str
    year: int
    resources: Mapping[str, Resource]
    items: tuple[Item, ...]


def make_site(spec: SiteSpec) -> Site:
    """Returns the site of a spec."""
    return _Builder(spec).build()


class _Builder:
    """Collects a site's pages."""

    def __init__(self, spec: SiteSpec):
        self.spec, self.lang = spec, spec.lang
        self.rng = random.Random(derive_seed(spec.seed, "webwalker/site", spec.key))
        self.name, self.year = words.site_name(spec.lang, self.rng), self.rng.randrange(2024, 2028)
        self.resources: dict[str, Resource] = {}
        self.items: list[Item] = []
        language = words.LANGUAGES.index(spec.lang)
        self.sections = [section[language] for section in words.SITES[spec.kind][1]]
        count = FEATURED + len(self.sections) * (SECTION_ITEMS + GROUPS * GROUP_ITEMS)
        self.names = words.item_names(spec.kind, spec.lang, count, self.rng)

    def build(self) -> Site:
        t = lambda key: words.label(key, self.lang)  # noqa: E731
        featured = [self.item("", ()) for _ in range(FEATURED)]
        for number in range(len(self.sections)):
            self.section(number)
        self.archive()
        news = [
            f"<p>{t('news')} {number}: {html.escape(item.name)}.</p>" for number, item in enumerate(featured, start=1)
        ]
        cards = self.cards(featured, named=True)
        title = f"<h1>{html.escape(self.name)}</h1><p>{t('welcome')}</p>"
        body = f"{title}<h2>{t('featured')}</h2>{cards}<h2>{t('news')}</h2>{''.join(news)}"
        self.page("", body)
        other = words.LANGUAGES[(words.LANGUAGES.index(self.lang) + 1) % len(words.LANGUAGES)]
        self.page("other.html", f"<p>{words.label('welcome', other)}</p>", lang=other)
        self.resources["loop-a"] = Resource(status=302, location="loop-b")
        self.resources["loop-b"] = Resource(status=302, location="loop-a")
        return Site(self.spec, self.name, self.year, self.resources, tuple(self.items))

    def section(self, number: int) -> None:
        """Adds a section: items of its own, groups with items, a broken link."""
        title, folder = self.sections[number], f"s{number}/"
        own = [self.item(folder, (title,)) for _ in range(SECTION_ITEMS)]
        groups = []
        for group in range(GROUPS):
            label = f"{words.label('group', self.lang)} {'ABC'[group]}"
            path = f"{folder}g{group}/"
            # In every second group the items' names are headings, and all buttons read the same.
            named = group % 2 == 0
            trail = (title, label)
            members = [self.item(path, trail, None if named else place) for place in range(GROUP_ITEMS)]
            self.page(path, f"<h1>{title}: {label}</h1>{self.cards(members, named=named)}", up=folder)
            groups.append(f'<li><a href="{self.up(folder)}{path}">{label}</a></li>')
        broken = f'<p><a href="{self.up(folder)}{folder}gone.html">{words.label("old", self.lang)}</a></p>'
        self.page(folder, f"<h1>{title}</h1>{self.cards(own, named=True)}<ul>{''.join(groups)}</ul>{broken}")

    def item(self, folder: str, trail: Sequence[str], place: int | None = None) -> Item:
        """Adds an item's page; `place` is its number in a list whose buttons all read "more"."""
        name, path = self.names[len(self.items)], f"{folder}i{len(self.items)}.html"
        facts = {a: words.value(a, self.lang, self.year, self.rng) for a in words.ATTRIBUTES}
        more = words.label("more", self.lang)
        button = name if place is None else more if place == 0 else f"{more} ({place + 1})"
        item = Item(name, path, (*trail, button), facts)
        self.items.append(item)
        self.page(path, self.fact_list(name, facts, self.year))
        return item

    def archive(self) -> None:
        """Adds last year's values of every item behind buttons with name and year, as deep as the item itself."""
        year, title = self.year - 1, words.label("archive", self.lang)
        group = f"{words.label('group', self.lang)} {year}"
        links: dict[bool, list[str]] = {False: [], True: []}
        for number, item in enumerate(self.items):
            old = {a: words.value(a, self.lang, year, self.rng) for a in words.ATTRIBUTES}
            path, deep = f"archive/{number}.html", len(item.trail) > 2
            self.page(path, self.fact_list(item.name, old, year))
            button = f"{item.name} {year}"
            links[deep].append(f'<li><a href="{number}.html">{html.escape(button)}</a></li>')
            trail = (title, group, button) if deep else (title, button)
            self.items[number] = dataclasses.replace(item, past=Item(item.name, path, trail, old))
        more = f'<p><a href="groups.html">{group}</a></p>'
        self.page("archive/", f"<h1>{title}</h1><ul>{''.join(links[False])}</ul>{more}")
        self.page("archive/groups.html", f"<h1>{title}: {group}</h1><ul>{''.join(links[True])}</ul>")

    def fact_list(self, name: str, facts: Mapping[str, str], year: int) -> str:
        rows = "".join(
            f"<tr><th>{words.attribute_label(self.spec.kind, a, self.lang)}</th><td>{html.escape(v)}</td></tr>"
            for a, v in facts.items()
        )
        edition = f"<p>{words.label('edition', self.lang)} {year}</p>"
        return f"<h1>{html.escape(name)}</h1>{edition}<table>{rows}</table>"

    def cards(self, items: Sequence[Item], *, named: bool) -> str:
        """Returns a list of items. Some links pass through a redirect, some are buttons with a script."""
        more, cards = words.label("more", self.lang), []
        for item in items:
            depth = item.path.count("/")
            target = item.path
            if self.rng.random() < 0.3:
                target = f"go/{len(self.resources)}"
                self.resources[target] = Resource(status=302, location=item.path)
            target, name = "../" * depth + target, html.escape(item.name)
            if not named:
                link = f'<h3>{name}</h3><a href="{target}">{more}</a>'
            elif self.rng.random() < 0.3:
                link = f"<button onclick=\"location.href='{target}'\">{name}</button>"
            else:
                link = f'<a href="{target}">{name}</a>'
            cards.append(f"<div>{link}</div>")
        return "".join(cards)

    def page(self, path: str, body: str, *, lang: str | None = None, up: str | None = None) -> None:
        """Adds a page with the site's navigation around it."""
        root = self.up(path) or "./"
        links = [(root, words.label("home", self.lang))]
        links += [(f"{root}s{number}/", title) for number, title in enumerate(self.sections)]
        links += [(f"{root}archive/", words.label("archive", self.lang))]
        nav = "".join(f'<a href="{target}">{text}</a> ' for target, text in links)
        foot = (
            f'<a href="{root}other.html">{words.label("language", self.lang)}</a> '
            f'<a href="{root}loop-a">{words.label("members", self.lang)}</a> '
            f'<a href="{root}brochure.pdf">PDF</a> <a href="https://elsewhere.example/">Partner</a>'
        )
        document = (
            f'<!doctype html><html lang="{lang or self.lang}"><head><meta charset="utf-8">'
            f"<title>{html.escape(self.name)}</title><style>nav {{ color: black }}</style></head>"
            f"<body><nav>{nav}</nav><main>{body}</main><footer>{foot}</footer></body></html>"
        )
        self.resources[path] = Resource(document)

    @staticmethod
    def up(path: str) -> str:
        """Returns the way from a page to the root."""
        return "../" * path.count("/")
