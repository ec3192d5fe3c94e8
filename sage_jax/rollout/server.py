"""Serves the embedded engine over SGLang's HTTP contract.

    python -m sage_jax.rollout.server --model assets/base --port 0        # prints the address when it can answer

SIGTERM ends it: running turns are given --grace seconds. Routes, limits and differences: docs/serving.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import prometheus_client
import uvicorn
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sage_jax.data.tokenizer import load_tokenizer
from sage_jax.errors import ConfigError, EngineError, SageError
from sage_jax.models import hf
from sage_jax.rollout import control_requests as control
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.http_client import check_key, read_key
from sage_jax.rollout.http_requests import BadRequestError, read_generate
from sage_jax.rollout.openai_api import complete_chat, list_models
from sage_jax.rollout.programs import KV_DTYPES, EngineConfig
from sage_jax.rollout.service import EngineService

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OPEN_PATHS = ("/health", "/metrics")  # what probes and scrapers call without a key
_GAUGES = ("running", "waiting", "kept_sessions", "weight_version", "compilations")
_HEALTH_S = 20.0
_SIZES = ("prefill_chunk", "prefill_rows", "decode_rows", "decode_steps", "block")  # of EngineConfig
_LOG = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


class ServerApp:
    """The routes of one service."""

    def __init__(self, service: EngineService, *, api_key: str = "", max_body_bytes: int = 16 << 20):
        """Keeps the arguments. With a key, every path but /health and /metrics asks for it as a bearer token."""
        self._service, self._key, self._max_body = service, api_key, max_body_bytes
        self._metrics = prometheus_client.CollectorRegistry()
        self._answers = prometheus_client.Counter(
            "sage_jax_http_answers", "Answers by path and status.", ["path", "status"], registry=self._metrics
        )
        self._seconds = prometheus_client.Histogram(
            "sage_jax_http_seconds", "Seconds from request to answer.", ["path"], registry=self._metrics
        )
        self._metrics.register(_EngineCollector(service))

    def build(self) -> Starlette:
        """Returns the ASGI application."""
        gets = {
            ("/health",): self._health,
            ("/health_generate",): self._health_generate,
            ("/model_info", "/get_model_info"): self._model_info,
            ("/server_info", "/get_server_info"): self._server_info,
            ("/v1/models",): self._models,
            ("/metrics",): self._show_metrics,
        }
        posts = {
            ("/generate",): self._generate,
            ("/v1/chat/completions",): self._chat,
            ("/update_weights_from_disk",): self._update_weights,
            ("/pause_generation",): self._pause,
            ("/continue_generation",): self._resume,
            ("/abort_request",): self._abort,
        }
        routes = [self._route(path, handler, ["GET"]) for paths, handler in gets.items() for path in paths]
        routes += [self._route(path, handler, ["POST"]) for paths, handler in posts.items() for path in paths]
        routes.append(self._route("/flush_cache", self._flush, ["GET", "POST"]))
        return Starlette(routes=routes, exception_handlers={HTTPException: self._refuse})

    def _route(self, path: str, handler: Handler, methods: list[str]) -> Route:
        async def endpoint(request: Request) -> Response:
            with self._seconds.labels(path).time():
                response = await self._guarded(request, path, handler)
            self._answers.labels(path, response.status_code).inc()
            return response

        return Route(path, endpoint, methods=methods)

    async def _guarded(self, request: Request, path: str, handler: Handler) -> Response:
        """Runs a handler behind the key, until the client goes away; every error becomes SGLang's JSON."""
        if self._key and path not in _OPEN_PATHS and not self._sends_key(request):
            return _error("Unauthorized: send the API key as a bearer token", 401)
        try:
            return await handler(request)
        except BadRequestError as error:
            return _error(str(error), error.status, error.code)
        except EngineError as error:
            # From an engine that goes on it is this request's own fault: asked again it would fail again.
            return _error(str(error), 422 if self._works() else 500)
        except ClientDisconnect:
            return _error("the client closed the connection", 499)
        except asyncio.CancelledError:  # the grace is over
            return _error("the server shuts down", 503)
        except Exception:  # a process edge: told in the log, answered and counted like other failures
            _LOG.exception("%s failed", path)
            return _error("the server failed at this request; its log says where", 500)

    def _works(self) -> bool:
        with contextlib.suppress(EngineError):
            self._service.engine.health()
            return True
        return False

    def _sends_key(self, request: Request) -> bool:
        sent = request.headers.get("Authorization", "").encode("latin-1")  # the bytes: text must be ASCII to compare
        return hmac.compare_digest(sent, f"Bearer {self._key}".encode("utf-8", "surrogateescape"))

    async def _refuse(self, request: Request, error: Exception) -> Response:
        """Answers for paths and methods that there are none of."""
        assert isinstance(error, HTTPException)  # for the type checker
        self._answers.labels("other", error.status_code).inc()
        response = _error(error.detail, error.status_code)
        response.headers.update(error.headers or {})
        return response

    async def _body(self, request: Request) -> Any:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > self._max_body:
                raise BadRequestError(f"the body is longer than {self._max_body} bytes", 413)
        try:
            body = json.loads(data.decode() or "{}")
            if b"\\u" in data:  # may be half of a surrogate pair, which no answer could repeat
                json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is not JSON in UTF-8: {error}") from error
        return body

    async def _generate(self, request: Request) -> Response:
        tokenizer = self._service.tokenizer
        pieces, listed = read_generate(await self._body(request), None if tokenizer is None else tokenizer.encode)
        answers = await _unless_gone(request, self._service.generate_all(pieces))
        return JSONResponse(answers if listed else answers[0])

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request)
        return JSONResponse(await _unless_gone(request, complete_chat(self._service, body)))

    async def _health(self, request: Request) -> Response:
        try:
            self._service.engine.health()
        except EngineError as error:
            return _error(str(error), 503)
        return Response()

    async def _health_generate(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(_HEALTH_S):
                await self._service.check_generates()
        except TimeoutError:
            return _error(f"no token within {_HEALTH_S:g} s", 503)
        return Response()

    async def _model_info(self, request: Request) -> Response:
        return JSONResponse(self._service.model_info())

    async def _server_info(self, request: Request) -> Response:
        return JSONResponse(self._service.server_info())

    async def _models(self, request: Request) -> Response:
        return JSONResponse(list_models(self._service))

    async def _show_metrics(self, request: Request) -> Response:
        text = prometheus_client.generate_latest(self._metrics)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def _flush(self, request: Request) -> Response:
        control.read_flush(await self._body(request))
        if await self._service.flush():
            return PlainTextResponse("Cache flushed.\n")
        return _error("Flush cache failed: requests are running", 400)

    async def _update_weights(self, request: Request) -> Response:
        path, version, abort_all = control.read_update(await self._body(request))
        try:
            held = await self._service.update_weights(path, version, abort_all=abort_all)
        except EngineError as error:
            message = str(error)
            answer = {"success": False, "message": message, "num_paused_requests": 0, "error": {"message": message}}
            return JSONResponse(answer, 400)
        message = "Succeeded to update model weights."
        return JSONResponse({"success": True, "message": message, "num_paused_requests": held})

    async def _pause(self, request: Request) -> Response:
        await self._service.pause(control.read_pause(await self._body(request)))
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def _resume(self, request: Request) -> Response:
        control.read_resume(await self._body(request))
        await self._service.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def _abort(self, request: Request) -> Response:
        await self._service.abort(control.read_abort(await self._body(request)))
        return Response()


class _EngineCollector(prometheus_client.registry.Collector):
    """Shows the engine's counters to Prometheus."""

    def __init__(self, service: EngineService):
        self._service = service

    def collect(self) -> Iterator[Any]:
        """Yields the metrics of this moment."""
        for name, value in self._service.engine.stats().items():
            kind = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            yield kind(f"sage_jax_engine_{name}", f"Engine: {name.replace('_', ' ')}.", value)
        yield GaugeMetricFamily("sage_jax_live_requests", "Requests without an answer yet.", len(self._service.live))


async def _unless_gone(request: Request, work: Any) -> Any:
    """Awaits the work; cancels it when the client closes the connection, so that no one's turn takes up a slot."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise BadRequestError("the client closed the connection", 499)
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error(message: str, status: int, code: str = "") -> JSONResponse:
    error = {"message": message, "code": code} if code else {"message": message}
    return JSONResponse({"error": error}, status, {"Retry-After": "1"} if status == 503 else None)


class _Server(uvicorn.Server):
    """uvicorn that prints its address once it listens, and does not raise SIGTERM again after a clean end."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(service: EngineService, listener: socket.socket, *, api_key: str, max_body_bytes: int, grace_s: int) -> None:
    """Answers until SIGTERM or SIGINT."""
    app = ServerApp(service, api_key=api_key, max_body_bytes=max_body_bytes).build()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=grace_s,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=1 << 16,
    )
    _Server(config).run(sockets=[listener])


def open_service(arguments: argparse.Namespace) -> EngineService:
    """Loads model, tokenizer (where the folder has one) and engine. Raises ConfigError or CheckpointError."""
    folder = Path(arguments.model)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"--model={arguments.model}: no such model folder (it needs config.json and safetensors)")
    model, params = hf.load(folder, compute_dtype=arguments.dtype)
    sizes = {name: value for name in (*_SIZES, "max_stop_ids") if (value := getattr(arguments, name)) is not None}
    sizes["kv_dtype"] = arguments.kv_cache_dtype.removeprefix("auto")
    length = arguments.max_length or min(model.max_position, EngineConfig.max_length)
    engine = EmbeddedEngine(model, params, EngineConfig.for_model(model, arguments.slots, length, **sizes))
    engine.warmup()
    tokenizer = None
    if not arguments.skip_tokenizer_init and any(
        (folder / name).is_file() for name in ("tokenizer.json", "vocab.json")
    ):
        tokenizer = load_tokenizer(folder)
    return EngineService(
        engine, folder, tokenizer, name=arguments.served_model_name, limit=arguments.max_queued_requests
    )


def bind(host: str, port: int, api_key: str) -> socket.socket:
    """Returns a bound socket. Raises ConfigError for an address that others reach while there is no key."""
    if host not in _LOOPBACK and not api_key:
        raise ConfigError(f"--host={host}: others can reach it, so that --api-key (or --api-key-env) is needed")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"--host={host} --port={port}: {error}; choose another, or port 0 for any") from error
    return listener


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


def parser() -> argparse.ArgumentParser:
    """Returns the command line's parser; names follow SGLang's where it has the same thing."""
    made = argparse.ArgumentParser(prog="python -m sage_jax.rollout.server", description=__doc__.splitlines()[0])
    made.add_argument("--model", "--model-path", required=True, help="Hugging Face folder")
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=30000, help="0 takes any free port")
    made.add_argument("--api-key", default="", help="needed for any host but loopback; other users can read it in ps")
    made.add_argument("--api-key-env", default="", help="environment variable that holds the key")
    made.add_argument("--served-model-name", default="", help="default: the model folder")
    made.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    made.add_argument("--kv-cache-dtype", default="auto", choices=("auto", *filter(None, KV_DTYPES)))
    made.add_argument("--skip-tokenizer-init", action="store_true", help="serve ids alone")
    made.add_argument("--max-queued-requests", type=_count, default=512, help="requests at once; more get 503")
    made.add_argument("--max-body-bytes", type=_count, default=16 << 20)
    made.add_argument("--grace", type=_count, default=30, help="seconds that running turns get after SIGTERM")
    made.add_argument("--slots", type=int, default=EngineConfig.num_slots, help="sequences at once")
    made.add_argument("--max-length", type=int, default=0, help="longest context; 0: the model's, 2048 at most")
    for name in _SIZES:
        made.add_argument(f"--{name.replace('_', '-')}", type=int, help="default: what suits the model")
    made.add_argument("--max-stop-ids", type=int, default=16)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the server of a command line."""
    arguments = parser().parse_args(argv)
    try:
        check_key("--api-key", arguments.api_key)
        key = arguments.api_key or (arguments.api_key_env and read_key("--api-key-env", arguments.api_key_env))
        with bind(arguments.host, arguments.port, key) as listener:
            service = open_service(arguments)
            with contextlib.closing(service.engine):
                limits = {"max_body_bytes": arguments.max_body_bytes, "grace_s": arguments.grace}
                serve(service, listener, api_key=key, **limits)
    except SageError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
