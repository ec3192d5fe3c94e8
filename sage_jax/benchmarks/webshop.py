"""WebShop: the official catalogue, or a generated one, in our own shop."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence

from sage_jax import config
from sage_jax.benchmarks.base import TRAIN, Progress
from sage_jax.config import setting
from sage_jax.data.expert_episodes import Demonstrator
from sage_jax.envs.base import EnvFactory
from sage_jax.types import Task

TEST, EVAL = "test", "eval"
TEST_GOALS = 500
# First goal of each split, and the one after its last; None is the end.
CUTS = {
    "agents": {TEST: (0, TEST_GOALS), TRAIN: (TEST_GOALS, None)},  # verl-agent, SkillRL, SkillMaster
    "original": {TEST: (0, TEST_GOALS), EVAL: (TEST_GOALS, 1500), TRAIN: (1500, None)},  # WebShop's own
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebshopSettings(config.Settings):
    """WebShop's catalogue, goals and pages."""

    shop_official: str = setting("small", "official catalogue: 1,000 products or all", choices=("small", "full"))
    shop_products: int = setting(2000, "products of the generated catalogue", low=1)
    shop_seed: int = setting(0, "seed of the generated catalogue and of every price", low=0)
    shop_goals: str = setting("synthetic", "instructions by template or by people", choices=("synthetic", "human"))
    shop_cuts: str = setting("agents", "goals of a split: verl-agent's cut, or WebShop's", choices=tuple(CUTS))
    shop_train: int = setting(0, "training goals at most; 0 takes all", low=0)
    shop_text: str = setting("text", "form of the pages", choices=("text", "text_rich", "compact"))
    shop_page: int = setting(10, "products on a page of results", low=1)
    shop_nouns: str = setting("rules", "tagger of titles: rules, or an installed spaCy pipeline")


@dataclasses.dataclass(frozen=True)
class Webshop:
    """WebShop with the options of a run (`Benchmark`).

    Attributes:
      settings: its own keys.
      source: "official" (the folder that $WEBSHOP_DATA names), "generated", or "auto": official when it is named.
      cache: folder for built catalogues.
      processes: not used; a catalogue is built by this process.
    """

    settings: WebshopSettings
    source: str
    cache: pathlib.Path
    processes: int = 1

    splits = (TRAIN, EVAL, TEST)

    def load(self, splits: Sequence[str], progress: Progress) -> dict[str, tuple[Task, ...]]:
        """Lists the goals of each split; a goal's family is the department of its product.

        Raises:
          ConfigError: the official catalogue is asked for and $WEBSHOP_DATA is not set.
        """
        from sage_jax.envs.webshop.catalogue import Catalogue

        folder = self.build()
        catalogue, kind = Catalogue(folder), self.settings.shop_goals
        table, cuts = catalogue.goals(kind), CUTS[self.settings.shop_cuts]
        tasks = {}
        for split in splits:
            first, end = cuts.get(split, (0, 0))
            numbers = range(len(table))[first:end]
            if split == TRAIN and self.settings.shop_train:
                numbers = numbers[: self.settings.shop_train]
            tasks[split] = tuple(
                Task(
                    id=f"webshop/{split}/{number:07d}",
                    benchmark="webshop",
                    split=split,
                    family=catalogue.category(int(table[number][0])),
                    payload={
                        "catalogue": str(folder), "goals": kind, "goal": number, "seed": self.settings.shop_seed,
                    },
                )
                for number in numbers
            )  # fmt: skip
        return tasks

    def build(self) -> pathlib.Path:
        """Returns the folder of the run's catalogue, building it once (errors as `source.build_catalogue`)."""
        from sage_jax.envs.webshop.source import build_catalogue

        own = self.settings
        return build_catalogue(
            self.source, self.cache, size=own.shop_official, products=own.shop_products, seed=own.shop_seed
        )

    def factory(self) -> EnvFactory:
        """Returns what makes shops."""
        from sage_jax.envs.webshop import WebShopFactory

        own = self.settings
        return WebShopFactory(mode=own.shop_text, page_size=own.shop_page, nouns=own.shop_nouns)

    def size_key(self, split: str) -> str:
        """Returns the key that decides how many goals a split has."""
        return "shop_cuts" if split == EVAL else "shop_products"

    def demonstrator(self, observation: str, family: str, rng: random.Random) -> Demonstrator:
        """Returns the scripted shopper. It reads the generated catalogue's sentences; official goals are refused."""
        from sage_jax.agents.shopper import ShopDemonstrator  # with the words of the generated catalogue

        return ShopDemonstrator(observation, family, rng)
