"""The shop in a browser: the pages an agent sees, server-rendered, so that a person can play a goal and see the score.

    python -m experiments.shop --port=3000

No script, no font and no picture from elsewhere. Visits are kept in memory, the oldest dropped when there are many.
"""

from __future__ import annotations

import collections
import html
import pathlib
import secrets
import urllib.parse

import jinja2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sage_jax.envs.webshop.catalogue import Catalogue
from sage_jax.envs.webshop.goals import make_goal
from sage_jax.envs.webshop.nouns import RULES, make_tagger
from sage_jax.envs.webshop.shop import Visit
from sage_jax.errors import DataError

_TEMPLATE = pathlib.Path(__file__).with_name("shop.html.j2")
_VISITS = 256


class ShopSite:
    """Handlers of the site, and the visits that are going on."""

    def __init__(
        self, catalogue: Catalogue, *, kind: str, seed: int, nouns: str = RULES, visits: int = _VISITS
    ) -> None:
        """Opens the shop.

        Args:
          catalogue: what it sells.
          kind: of the goals, "synthetic" or "human".
          seed: of the prices.
          nouns: tagger of titles.
          visits: kept at most.
        """
        self._catalogue, self._kind, self._seed = catalogue, kind, seed
        self._tagger, self._limit = make_tagger(nouns), visits
        self._visits: collections.OrderedDict[str, tuple[Visit, list[str]]] = collections.OrderedDict()
        environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(_TEMPLATE.read_text())

    def app(self) -> Starlette:
        """Returns the site as an ASGI application."""
        routes = [
            Route("/", self.front),
            Route("/play", self.play, methods=["POST"]),
            Route("/visit/{name}", self.show),
            Route("/visit/{name}", self.act, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def front(self, request: Request) -> Response:
        """Offers a goal."""
        count = len(self._catalogue.goals(self._kind))
        values = {"products": len(self._catalogue), "goals": count, "suggested": secrets.randbelow(max(count, 1))}
        return self._page(page=None, steps=None, **values)

    async def play(self, request: Request) -> Response:
        """Starts a visit with the goal of the form."""
        text = (await _form(request)).get("goal", "")
        try:
            goal = make_goal(self._catalogue, self._kind, int(text), self._seed)
        except (ValueError, DataError) as error:
            return HTMLResponse(html.escape(f"no goal {text!r}: {error}"), status_code=400)
        name = secrets.token_urlsafe(8)
        self._visits[name] = (Visit(self._catalogue, goal, self._seed, self._tagger), [])
        while len(self._visits) > self._limit:
            self._visits.popitem(last=False)
        return RedirectResponse(f"/visit/{name}", status_code=303)

    async def show(self, request: Request) -> Response:
        """Shows where a visit is."""
        name = request.path_params["name"]
        if name not in self._visits:
            return RedirectResponse("/", status_code=303)  # too old, or never there
        visit, actions = self._visits[name]
        parts = visit.page.parts
        start = next((part for part in parts if part.text not in ("WebShop", "Instruction:", visit.goal.text)), None)
        return self._page(page=visit.page, goal=visit.goal, score=visit.score, start=start, steps=len(actions))

    async def act(self, request: Request) -> Response:
        """Plays the action of a form, then shows the page."""
        name, form = request.path_params["name"], await _form(request)
        if name in self._visits:
            visit, actions = self._visits[name]
            self._visits.move_to_end(name)
            action = f"click[{form['click']}]" if "click" in form else f"search[{form.get('keywords', '')}]"
            if visit.play(action):
                actions.append(action)
        return RedirectResponse(f"/visit/{name}", status_code=303)

    def _page(self, **values: object) -> Response:
        return HTMLResponse(self._template.render(**values))


async def _form(request: Request) -> dict[str, str]:
    body = (await request.body()).decode("utf-8", "replace")
    return {name: values[-1] for name, values in urllib.parse.parse_qs(body).items()}
