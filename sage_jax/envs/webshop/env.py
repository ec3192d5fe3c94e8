"""WebShop as an `Environment`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from sage_jax.envs.base import Observation, StepResult
from sage_jax.envs.webshop.catalogue import Catalogue
from sage_jax.envs.webshop.goals import make_goal
from sage_jax.envs.webshop.nouns import RULES, make_tagger
from sage_jax.envs.webshop.oracle import Oracle
from sage_jax.envs.webshop.pages import MODES
from sage_jax.envs.webshop.shop import PAGE_SIZE, Visit
from sage_jax.errors import ConfigError, DataError, EnvError
from sage_jax.types import Task

SOLVED = 1.0 - 1e-9


@dataclasses.dataclass
class WebShopFactory:
    """Makes shops that share one opened catalogue in a process, and its memory with other processes.

    Attributes:
      mode: text of the observations, one of `pages.MODES`.
      page_size: products on a page of results; the original shows 10.
      nouns: tagger of titles, see `nouns.make_tagger`.
    """

    mode: str = "text"
    page_size: int = PAGE_SIZE
    nouns: str = RULES
    _open: dict[str, Catalogue] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises ConfigError for a mode that does not exist or a page without products."""
        if self.mode not in MODES:
            raise ConfigError(f"shop_text={self.mode!r}: expected one of {', '.join(MODES)}")
        if self.page_size < 1:
            raise ConfigError(f"shop_page={self.page_size}: a page shows at least 1 product")

    def __call__(self) -> WebShopEnv:
        """Returns a new environment."""
        return WebShopEnv(self)

    def catalogue(self, folder: str) -> Catalogue:
        """Returns a catalogue, opened once. Raises DataError when it is missing."""
        if folder not in self._open:
            self._open[folder] = Catalogue(pathlib.Path(folder))
        return self._open[folder]

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings without what was opened."""
        return {**self.__dict__, "_open": {}}


class WebShopEnv:
    """One visit at a time. The purchase ends it: reward is its score, in [0, 1]; a score of 1 is won."""

    def __init__(self, factory: WebShopFactory) -> None:
        """Keeps the factory, which holds what is shared."""
        self._factory = factory
        self._tagger = make_tagger(factory.nouns)
        self._visit: Visit | None = None
        self._oracle: Oracle | None = None

    def reset(self, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts a visit.

        Args:
          task: its payload holds "catalogue" (folder), "goals" (kind), "goal" (number) and "seed" (of prices).
          seed: not used; a visit has no chance in it.
          expert: whether every info carries "expert_action", which knows the goal's product.

        Raises:
          DataError: the catalogue is missing, or has no such goal.
        """
        del seed
        payload = task.payload
        missing = [key for key in ("catalogue", "goals", "goal", "seed") if key not in payload]
        if missing:
            raise DataError(f"task {task.id}: the payload lacks {', '.join(missing)}")
        catalogue = self._factory.catalogue(payload["catalogue"])
        goal = make_goal(catalogue, payload["goals"], payload["goal"], payload["seed"])
        visit = Visit(catalogue, goal, payload["seed"], self._tagger, self._factory.page_size)
        self._visit, self._oracle = visit, Oracle(visit) if expert else None
        info = {"task": goal.text, "family": task.family, **self._hint()}
        return Observation(visit.page.render(self._factory.mode), visit.page.actions, info)

    def step(self, action: str) -> StepResult:
        """Plays an action; one that is not possible shows the same page again and sets info["invalid"].

        Raises:
          EnvError: no visit is running.
        """
        visit = self._visit
        if visit is None:
            raise EnvError("step() was called without a running episode; call reset() first")
        info: dict[str, Any] = {"invalid": not visit.play(action), "page": visit.page.name}
        text, score = visit.page.render(self._factory.mode), visit.score
        if score is None:
            return StepResult(text, visit.page.actions, 0.0, False, False, info | self._hint())
        self._visit = None
        info |= {"score": dataclasses.asdict(score), "nouns": self._factory.nouns} | self._hint()
        return StepResult(text, (), score.value, True, score.value >= SOLVED, info)

    def close(self) -> None:
        """Forgets the visit."""
        self._visit = self._oracle = None

    def _hint(self) -> dict[str, Any]:
        return {} if self._oracle is None else {"expert_action": self._oracle.suggest()}
