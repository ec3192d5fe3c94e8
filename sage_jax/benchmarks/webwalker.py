"""WebWalkerQA: the public questions on live sites, or generated sites on this machine."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
from collections.abc import Sequence

from sage_jax import config
from sage_jax.benchmarks.base import TRAIN, Progress
from sage_jax.config import setting
from sage_jax.data.expert_episodes import Demonstrator
from sage_jax.envs.base import EnvFactory
from sage_jax.errors import ConfigError
from sage_jax.types import Task

VARIABLE = "WEBWALKER_DATA"
_GENERATED_PAGES = 8192  # of some KB each; reading one again costs more than a turn of the local task LLM


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebwalkerSettings(config.Settings):
    """WebWalkerQA's sites."""

    sites_seed: int = setting(0, "seed of the generated websites", low=0)
    sites_train: int = setting(40, "generated training sites, six questions each", low=0)
    sites_test: int = setting(10, "generated sites of valid and of test, six questions each", low=0)
    sites_languages: tuple[str, ...] = setting(("en", "de", "fr", "zh"), "languages of the generated sites, in turn")
    sites_past: float = setting(0.0, "share of the deeper generated questions that ask about last year", low=0, high=1)
    sites_page_chars: int = setting(6000, "characters of a page shown at most", low=100)
    sites_train_share: float = setting(0.6, "share of the public questions that is trained on", low=0, high=0.95)


@dataclasses.dataclass(frozen=True)
class Webwalker:
    """WebWalkerQA with the options of a run (`Benchmark`).

    Attributes:
      settings: its own keys.
      source: "official" (the file that $WEBWALKER_DATA names), "generated", or "auto": official when it is named.
      cache: not used; sites are made anew by each process.
      processes: not used.
    """

    settings: WebwalkerSettings
    source: str
    cache: pathlib.Path
    processes: int = 1

    splits = (TRAIN, "valid", "test")

    def load(self, splits: Sequence[str], progress: Progress) -> dict[str, tuple[Task, ...]]:
        """Lists the questions of each split; the family is type and difficulty, "single_source-easy".

        The public set is one split. Every question is given to train or to test by its place in an order that the
        seed draws; valid is empty.

        Raises:
          ConfigError: the public questions are asked for and $WEBWALKER_DATA is not set.
          DataError: the file is missing or broken.
        """
        from sage_jax.envs.webwalker import TwinOptions, make_tasks, read_questions

        own, named = self.settings, os.environ.get(VARIABLE, "")
        if self.source == "official" and not named:
            raise ConfigError(f"source='official' with benchmark='webwalker': set {VARIABLE} to the file of questions")
        if self.source == "generated" or not named:
            options = TwinOptions(own.sites_seed, own.sites_train, own.sites_test, own.sites_test)
            tasks = make_tasks(dataclasses.replace(options, languages=own.sites_languages, past=own.sites_past))
            return {split: tuple(tasks[split]) for split in splits}
        questions = read_questions(named)
        order = random.Random(own.sites_seed).sample(range(len(questions)), len(questions))
        cut = round(own.sites_train_share * len(questions))
        parts = {TRAIN: sorted(order[:cut]), "valid": [], "test": sorted(order[cut:])}
        return {split: tuple(dataclasses.replace(questions[i], split=split) for i in parts[split]) for split in splits}

    def factory(self) -> EnvFactory:
        """Returns what makes environments. Pages of generated sites are small: all of a run's fit the cache."""
        from sage_jax.envs.webwalker import WebwalkerFactory
        from sage_jax.tools import FetchOptions

        generated = self.source == "generated" or not os.environ.get(VARIABLE, "")
        fetch = FetchOptions(cached_pages=_GENERATED_PAGES) if generated else FetchOptions()
        return WebwalkerFactory(fetch, page_chars=self.settings.sites_page_chars)

    def size_key(self, split: str) -> str:
        """Returns the key that decides how many questions a split has."""
        return "sites_train" if split == TRAIN else "sites_test"

    def demonstrator(self, observation: str, family: str, rng: random.Random) -> Demonstrator:
        """Raises ConfigError: walks of the expert are not written as conversations of an agent that thinks."""
        raise ConfigError("benchmark='webwalker' has no demonstrations for a cold start; set sft_episodes=0")
