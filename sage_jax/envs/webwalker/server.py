"""A real HTTP server on the loopback interface for generated websites: one thread, as many sites as are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sage_jax.envs.webwalker.sites import Resource, SiteSpec, make_site
from sage_jax.errors import EnvError

_START_S = 20.0


class SiteServer:
    """Serves sites under http://127.0.0.1:PORT/KEY/. Starts with the first site; several threads may add some."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._sites: dict[str, Mapping[str, Resource]] = {}
        self._lock = threading.Lock()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    def add(self, spec: SiteSpec | Mapping[str, Any]) -> str:
        """Serves a generated site; returns the address of its root. Raises DataError when the spec is none."""
        spec = spec if isinstance(spec, SiteSpec) else SiteSpec.read(spec)
        if spec.key not in self._sites:
            return self.add_resources(spec.key, make_site(spec).resources)
        return f"http://127.0.0.1:{self._port}/{spec.key}/"

    def add_resources(self, key: str, resources: Mapping[str, Resource]) -> str:
        """Serves pages under a key; returns the address of their root. Raises EnvError when no server starts."""
        with self._lock:
            if self._server is None:
                self._start()
            self._sites[key] = resources
        return f"http://127.0.0.1:{self._port}/{key}/"

    def close(self) -> None:
        """Stops the server."""
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = None

    def _start(self) -> None:
        routes = [Route("/robots.txt", _robots), Route("/{key}/{path:path}", self._serve)]
        config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # signals are the program's business
        thread = threading.Thread(target=server.run, name="site-server", daemon=True)
        thread.start()
        deadline = time.monotonic() + _START_S
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise EnvError(f"the server of generated websites did not start within {_START_S:.0f} s")
            time.sleep(0.005)
        self._server, self._thread = server, thread
        self._port = server.servers[0].sockets[0].getsockname()[1]

    async def _serve(self, request: Request) -> Response:
        key, path = request.path_params["key"], request.path_params["path"]
        resource = self._sites.get(key, {}).get(path)
        if resource is None:
            return HTMLResponse("<h1>404</h1>", status_code=404)
        if resource.location:
            return RedirectResponse(f"/{key}/{resource.location}", status_code=resource.status)
        return HTMLResponse(resource.body, status_code=resource.status)


async def _robots(request: Request) -> Response:
    return Response("User-agent: *\nDisallow: /private/\n", media_type="text/plain")
