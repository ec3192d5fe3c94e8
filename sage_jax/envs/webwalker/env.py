"""WebWalkerQA as an `Environment`: one question about one website, walked by its buttons.

    visit_page[Courses]    click a button          find[deadline]    lines of the page that hold a text
    answer[31 May]         ends the episode

Live sites are fetched as they are. Generated sites (twin.py) are served by a real HTTP server on this machine, one a
process, and fetched in the same way.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sage_jax.envs.base import Observation
from sage_jax.envs.tool_episode import ToolEnv, ToolEpisode
from sage_jax.envs.webwalker import scoring
from sage_jax.envs.webwalker.server import SiteServer
from sage_jax.errors import DataError, EnvError
from sage_jax.tools import Browser, FetchOptions, PageClient, Toolbox, ToolFailure
from sage_jax.types import Task

_MOST_LISTED = 80  # buttons among the admissible actions


@dataclasses.dataclass
class WebwalkerFactory:
    """Makes environments that share one page client and one server of generated sites.

    Attributes:
      fetch: limits of the page client.
      page_chars: characters of a page shown at most.
    """

    fetch: FetchOptions = dataclasses.field(default_factory=FetchOptions)
    page_chars: int = 6000
    _client: PageClient | None = dataclasses.field(default=None, init=False, repr=False)
    _server: SiteServer | None = dataclasses.field(default=None, init=False, repr=False)

    def __call__(self) -> WebwalkerEnv:
        """Returns a new environment."""
        if self._client is None:
            self._client, self._server = PageClient(self.fetch), SiteServer()
        return WebwalkerEnv(self._client, self._server, page_chars=self.page_chars)

    def close(self) -> None:
        """Stops the server and closes the client; environments made before are of no use afterwards."""
        if self._client is not None:
            self._client.close()
            self._server.close()
            self._client = self._server = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings alone."""
        return {**self.__dict__, "_client": None, "_server": None}


class WebwalkerEnv(ToolEnv):
    """Plays one question at a time; the reward of the answer is 1.0 for an exact match, else 0.0."""

    def __init__(self, client: PageClient, server: SiteServer, *, page_chars: int = 6000):
        """Takes what the environments of a process share."""
        self._client, self._server, self._page_chars = client, server, page_chars
        super().__init__()

    def reset(self, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Opens the site's root.

        Args:
          task: its payload holds question, answer, and root_url or site (of a generated one).
          seed: not used; there is no chance in it.
          expert: whether every info carries "expert_action"; only generated questions have an expert.

        Returns:
          The question and the root page. Info: "task", "family", "tools" (specs in OpenAI's format).

        Raises:
          DataError: the payload lacks a field.
          EnvError: the root page cannot be had.
        """
        self._episode = None
        payload = task.payload
        if not {"question", "answer"} <= set(payload) or not {"root_url", "site"} & set(payload):
            raise DataError(f"task {task.id}: the payload needs question, answer and root_url or site")
        root = self._server.add(payload["site"]) if "site" in payload else payload["root_url"]
        browser = Browser(self._client, root, page_chars=self._page_chars)
        try:
            view = browser.open(root)
        except ToolFailure as failure:
            raise EnvError(f"task {task.id}: the root page: {failure.outcome.value}: {failure}") from failure

        def grade(answer: str) -> tuple[bool, dict[str, Any]]:
            won, f1 = scoring.exact_match(answer, payload["answer"]), scoring.f1_score(answer, payload["answer"])
            return won, {"exact_match": won, "f1": f1}

        episode = ToolEpisode(
            Toolbox(browser.tools(), max_chars=self._page_chars + 4000),
            grade,
            admissible=lambda: tuple(f"visit_page[{text}]" for text in list(browser.page.buttons)[:_MOST_LISTED]),
            plan=payload.get("expert", ()) if expert else None,
        )
        self._episode = episode
        info = {"task": payload["question"], "family": task.family, **episode.info}
        return Observation(f"Question: {payload['question']}\n\n{view}", episode.admissible, info)
