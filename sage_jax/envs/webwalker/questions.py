"""Questions about generated websites, with their answers, golden paths and the clicks of an expert."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from sage_jax.envs.webwalker import vocabulary as words
from sage_jax.envs.webwalker.dataset import DIFFICULTIES, TYPES
from sage_jax.envs.webwalker.sites import Item, Site, SiteSpec, make_site
from sage_jax.errors import ConfigError
from sage_jax.seeding import derive_seed
from sage_jax.types import Task

SPLITS = ("train", "valid", "test")
_FORMS = ("both", "total", "larger")  # of questions with two sources


@dataclasses.dataclass(frozen=True)
class TwinOptions:
    """What a set of generated questions depends on.

    Attributes:
      seed: of everything; sites of different seeds have nothing in common.
      train, valid, test: sites of each split; every site has one question of each type and difficulty.
      kinds, languages: of the sites, in turn.
      past: share of the medium and hard questions that ask about last year's edition, which is in the archive. A
        question names its year; which edition the site has as its current one is to be seen on the site alone.
    """

    seed: int = 0
    train: int = 40
    valid: int = 10
    test: int = 10
    kinds: tuple[str, ...] = words.KINDS
    languages: tuple[str, ...] = words.LANGUAGES
    past: float = 0.0

    def __post_init__(self) -> None:
        for name, known in {"kinds": words.KINDS, "languages": words.LANGUAGES}.items():
            for value in getattr(self, name) or ("",):
                if value not in known:
                    raise ConfigError(f"webwalker {name} contains {value!r}: expected some of {', '.join(known)}")
        for split in SPLITS:
            if getattr(self, split) < 0:
                raise ConfigError(f"webwalker {split}={getattr(self, split)}: a number of sites is 0 or more")
        if not 0 <= self.past <= 1:
            raise ConfigError(f"webwalker past={self.past}: a share is between 0 and 1")


def make_tasks(options: TwinOptions) -> dict[str, list[Task]]:
    """Returns the questions of each split."""
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    first = 0
    for split in SPLITS:
        for index in range(first, first + getattr(options, split)):
            kind = options.kinds[index % len(options.kinds)]
            lang = options.languages[(index + index // len(options.kinds)) % len(options.languages)]
            tasks[split] += site_tasks(SiteSpec(kind, lang, options.seed, index), split, options.past)
        first += getattr(options, split)
    return tasks


def site_tasks(spec: SiteSpec, split: str, past: float = 0.0) -> list[Task]:
    """Returns one question of each type and difficulty about a site.

    The difficulty is the depth of the deepest page the answer needs: one click from the root, two, or three.
    """
    site, tasks = make_site(spec), []
    for kind in TYPES:
        for depth in range(len(DIFFICULTIES)):
            rng = random.Random(derive_seed(spec.seed, "webwalker/question", spec.key, kind, depth))
            old = depth > 0 and past > 0 and rng.random() < past
            tasks.append(_task(site, kind, depth, split, rng, past=old))
    return tasks


def answer_of(form: str, attribute: str, items: Sequence[Item]) -> str:
    """Returns the answer to a question from the facts of the items it names."""
    values = [item.facts[attribute] for item in items]
    if form == "total":
        return str(sum(map(int, values)))
    if form == "larger":
        return max(items, key=lambda item: int(item.facts[attribute])).name
    return "; ".join(values)


def _task(site: Site, kind: str, depth: int, split: str, rng: random.Random, *, past: bool) -> Task:
    deep = [item for item in site.items if len(item.trail) == depth + 1]
    items, form = [rng.choice(deep)], "single"
    if kind == "multi_source":
        reachable = [item for item in site.items if len(item.trail) <= depth + 1]
        items += [rng.choice([item for item in reachable if item is not items[0]])]
        form = rng.choice(_FORMS)
        rng.shuffle(items)
    if past:
        items = [item.past or item for item in items]
    attributes = words.ATTRIBUTES if form in ("single", "both") else words.NUMBERS
    if form == "larger":  # equal numbers have no larger one
        attributes = [a for a in attributes if items[0].facts[a] != items[1].facts[a]] or ("person",)
        form = form if attributes != ("person",) else "both"
    attribute = rng.choice(list(attributes))
    lang = site.spec.lang
    question = words.QUESTIONS[form][words.LANGUAGES.index(lang)].format(
        a=words.attribute_label(site.spec.kind, attribute, lang),
        x=items[0].name,
        y=items[-1].name,
        year=site.year - past,
    )
    answer = answer_of(form, attribute, items)
    home = words.label("home", lang)
    clicks = [button for n, item in enumerate(items) for button in ((home,) if n else ()) + item.trail]
    difficulty = DIFFICULTIES[depth]
    return Task(
        id=f"webwalker-twin-{split}-{site.spec.key}-{kind}-{difficulty}",
        benchmark="webwalker",
        split=split,
        family=f"{kind}-{difficulty}",
        payload={
            "question": question,
            "answer": answer,
            "site": dataclasses.asdict(site.spec),
            "type": kind,
            "difficulty": difficulty,
            "domain": site.spec.kind,
            "lang": lang,
            "golden_path": ["->".join(("root", *item.trail)) for item in items],
            "source_website": [item.path for item in items],
            "form": form,
            "past": past,
            "attribute": words.attribute_label(site.spec.kind, attribute, lang),
            "expert": [*(f"visit_page[{button}]" for button in clicks), f"answer[{answer}]"],
        },
    )
