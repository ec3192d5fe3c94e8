"""WebWalkerQA as an `Environment`: one question about one website, walked by its buttons.

    visit_page[Courses]    click a button          find[deadline]    lines of the page that hold a text
    answer[31 May]         ends the episode

Live sites are fetched as they are. Generated sites (twin.py) are served by a real HTTP server on this machine, one a
process, and fetched in the same way.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sage_jax.envs.base import Observation, StepResult
from sage_jax.envs.webwalker import scoring
from sage_jax.envs.webwalker.server import SiteServer
from sage_jax.errors import DataError, EnvError
from sage_jax.tools import ANSWER, Browser, FetchOptions, PageClient, Toolbox, ToolFailure, ToolOutcome, parse_action
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


class WebwalkerEnv:
    """Plays one question at a time; the reward of the answer is 1.0 for an exact match, else 0.0."""

    def __init__(self, client: PageClient, server: SiteServer, *, page_chars: int = 6000):
        """Takes what the environments of a process share."""
        self._client, self._server, self._page_chars = client, server, page_chars
        self._task: Task | None = None  # None: no episode is running
        self._plan: list[str] | None = None

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
        self._task = None
        payload = task.payload
        if not {"question", "answer"} <= set(payload) or not {"root_url", "site"} & set(payload):
            raise DataError(f"task {task.id}: the payload needs question, answer and root_url or site")
        root = self._server.add(payload["site"]) if "site" in payload else payload["root_url"]
        self._browser = Browser(self._client, root, page_chars=self._page_chars)
        self._toolbox = Toolbox(self._browser.tools(), max_chars=self._page_chars + 4000)
        try:
            view = self._browser.open(root)
        except ToolFailure as failure:
            raise EnvError(f"task {task.id}: the root page: {failure.outcome.value}: {failure}") from failure
        self._task = task
        self._plan = list(payload["expert"]) if expert and "expert" in payload else None
        tools = [spec.to_json() for spec in self._toolbox.specs]
        info = {"task": payload["question"], "family": task.family, "tools": tools, **self._expert_info(expert)}
        return Observation(f"Question: {payload['question']}\n\n{view}", self._admissible(), info)

    def step(self, action: str) -> StepResult:
        """Plays an action.

        Info: "outcome" (how the call ended), "invalid" (it was no call, or one of no tool), "calls"; after an answer
        also "answer", "exact_match", "f1".

        Raises:
          EnvError: no episode is running.
        """
        task = self._task
        if task is None:
            raise EnvError("step() was called without a running episode; call reset() first")
        call = parse_action(action)
        expert = self._advance(action)
        if call.name == ANSWER:
            self._task = None
            truth = task.payload["answer"]
            won, f1 = scoring.exact_match(call.arguments, truth), scoring.f1_score(call.arguments, truth)
            info = {"outcome": ToolOutcome.OK.value, "answer": call.arguments, "exact_match": won, "f1": f1}
            return StepResult("Answered.", (), float(won), True, won, {"invalid": False, **info, **expert})
        if call.problem:
            info = {"outcome": ToolOutcome.BAD_ARGUMENTS.value, "invalid": True, **expert}
            return StepResult(call.problem, self._admissible(), 0.0, False, False, info)
        result = self._toolbox.call(call.name, call.arguments)
        wrong = (ToolOutcome.UNKNOWN_TOOL, ToolOutcome.BAD_ARGUMENTS)
        text = result.text if result.outcome is ToolOutcome.OK else f"[{result.outcome.value}] {result.text}"
        info = {"outcome": result.outcome.value, "invalid": result.outcome in wrong, **expert}
        return StepResult(text, self._admissible(), 0.0, False, False, info)

    def close(self) -> None:
        """Ends the episode; client and server belong to the process."""
        self._task = None

    def _admissible(self) -> tuple[str, ...]:
        page = self._browser.page
        return tuple(f"visit_page[{text}]" for text in list(page.buttons if page else ())[:_MOST_LISTED])

    def _advance(self, action: str) -> dict[str, Any]:
        """Moves the expert's plan on; an action of someone else's makes it give up."""
        if self._plan is None:
            return {}
        self._plan = self._plan[1:] if self._plan and action == self._plan[0] else []
        return self._expert_info(True)

    def _expert_info(self, expert: bool) -> dict[str, Any]:
        if not expert:
            return {}
        return {"expert_action": self._plan[0] if self._plan else None}
