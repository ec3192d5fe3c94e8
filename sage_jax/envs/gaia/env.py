"""GAIA as an `Environment`: one question, files, pages, tools, an answer.

    read_file[staff.csv]   search[Team Atlas]   open_page[http://...]   find[Budget]   python[print(2 * 3)]
    answer[6]              ends the episode

Questions of a user's copy search and read the public web; generated ones (worlds.py) have pages of their own, served on
this machine.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from typing import Any

from sage_jax.envs.base import Observation
from sage_jax.envs.gaia.questions import ROOT
from sage_jax.envs.gaia.scoring import question_score
from sage_jax.envs.gaia.worlds import WorldSpec, make_world
from sage_jax.envs.tool_episode import ToolEnv, ToolEpisode
from sage_jax.envs.webwalker.server import SiteServer
from sage_jax.errors import DataError
from sage_jax.tools import Browser, FetchOptions, PageClient, Tool, Toolbox, read_page
from sage_jax.tools.files import FileLimits, FileReader
from sage_jax.tools.python import PythonRunner, SandboxPython, python_tool
from sage_jax.tools.search import Document, LocalSearch, WebSearch, WebSearchOptions, search_tool
from sage_jax.types import Task


@dataclasses.dataclass(frozen=True)
class _Place:
    """What an episode's tools look at: files by name, a search, and the root of the pages (None: the web)."""

    files: dict[str, str]
    search: LocalSearch | WebSearch | None
    root: str | None


@dataclasses.dataclass
class GaiaFactory:
    """Makes environments that share pages, files and searches.

    Attributes:
      fetch: limits of the page client.
      files: limits of the file reader.
      web_search: the API that questions of a user's copy search with; None gives them no search.
      python: runs programs in a sandbox; None gives no python. Must be picklable.
      page_chars: characters of a page shown at most.
    """

    fetch: FetchOptions = dataclasses.field(default_factory=FetchOptions)
    files: FileLimits = dataclasses.field(default_factory=FileLimits)
    web_search: WebSearchOptions | None = None
    python: PythonRunner | None = None
    page_chars: int = 6000
    _shared: _Shared | None = dataclasses.field(default=None, init=False, repr=False)

    def __call__(self) -> GaiaEnv:
        """Returns a new environment."""
        if self._shared is None:
            self._shared = _Shared(self)
        return GaiaEnv(self._shared, self)

    def close(self) -> None:
        """Stops the server and removes the files of generated worlds."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings alone."""
        return {**self.__dict__, "_shared": None}


class _Shared:
    """What the environments of a process share."""

    def __init__(self, factory: GaiaFactory):
        self.client, self._server = PageClient(factory.fetch), SiteServer()
        self._folder = tempfile.TemporaryDirectory(prefix="sage-gaia-")
        self._web = WebSearch(factory.web_search) if factory.web_search else None
        self._places: dict[str, _Place] = {}

    def place(self, task: Task) -> _Place:
        """Returns what a task's tools look at; a generated world is written and served once."""
        if "world" not in task.payload:
            return _Place(dict(task.payload.get("files", {})), self._web, None)
        spec = WorldSpec.read(task.payload["world"])
        if spec.key not in self._places:
            world = make_world(spec)
            files = world.write_files(pathlib.Path(self._folder.name, spec.key))
            pages = world.pages()
            root = self._server.add_resources(spec.key, pages)
            documents = []
            for path, resource in pages.items():
                if not world.searched(path):
                    continue
                page = read_page(resource.body, root + path, root)
                documents.append(Document(page.url, page.title, page.markdown))
            self._places[spec.key] = _Place(files, LocalSearch(documents), root)
        return self._places[spec.key]

    def close(self) -> None:
        self.client.close()
        self._server.close()
        self._folder.cleanup()


class GaiaEnv(ToolEnv):
    """Plays one question at a time; the reward of the answer is 1.0 when the official rules accept it, else 0.0."""

    def __init__(self, shared: _Shared, factory: GaiaFactory):
        """Takes what the environments of a process share."""
        self._shared, self._factory = shared, factory
        super().__init__()

    def reset(self, task: Task, seed: int, *, expert: bool = False) -> Observation:
        """Starts a question.

        Args:
          task: its payload holds question, answer (None when hidden), and files or world.
          seed: not used; there is no chance in it.
          expert: whether every info carries "expert_action"; only generated questions have an expert.

        Raises:
          DataError: the payload lacks a field.
        """
        self._episode = None
        payload = task.payload
        if not {"question", "answer"} <= set(payload):
            raise DataError(f"task {task.id}: the payload needs question and answer")
        place = self._shared.place(task)

        def grade(answer: str) -> tuple[bool, dict[str, Any]]:
            truth = payload["answer"]
            return truth is not None and question_score(answer, truth), {"graded": truth is not None}

        tools = self._tools(place)
        plan = None
        if expert:
            known = {tool.spec.name for tool in tools} | {"answer"}
            actions = [action for action in payload.get("expert", ()) if action.partition("[")[0] in known]
            plan = [action.replace(ROOT, place.root or "") for action in actions]
        self._episode = ToolEpisode(Toolbox(tools, max_chars=self._factory.page_chars + 4000), grade, plan=plan)
        listed = ", ".join(place.files) or "none"
        start = f"\nThe pages begin at {place.root}" if place.root else ""
        if self._factory.python is not None and place.files:
            start += f"\nPrograms find the files at {', '.join(place.files.values())}"
        info = {"task": payload["question"], "family": task.family, **self._episode.info}
        return Observation(f"Question: {payload['question']}\n\nFiles: {listed}{start}", (), info)

    def _tools(self, place: _Place) -> list[Tool]:
        browser = Browser(self._shared.client, place.root, page_chars=self._factory.page_chars)
        tools = [*FileReader(place.files, self._factory.files).tools(), *browser.open_tools()]
        if place.search is not None:
            tools.insert(0, search_tool(place.search.search))
        python = self._factory.python
        if isinstance(python, SandboxPython):  # programs may read the question's files, at the paths they have here
            python = dataclasses.replace(python, readable=(*python.readable, *place.files.values()))
        if python is not None:
            tools.append(python_tool(python))
        return tools
