"""A client of SGLang servers (or of our own, server.py) that is an `Engine`: same calls, same meanings, over HTTP.

A session sticks to one server, whose prefix cache then holds its history, and goes to the next one while that server
rests after a failure (server_pool.py). Control calls (weights, pause, abort) go to every server, since routers do not
pass them on. Imports no jax.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sage_jax.errors import (
    CheckpointError,
    EngineError,
    ServerUnavailableError,
    StaleWeightsError,
)
from sage_jax.rollout.engine import ABORT, LENGTH, GenerateRequest, Generation, VersionSpan, find_outside
from sage_jax.rollout.http_client import BackgroundLoop, HttpClient, HttpOptions
from sage_jax.rollout.http_types import Answer, generate_body, read_answer
from sage_jax.rollout.server_pool import ServerPool
from sage_jax.rollout.server_weights import Published, ServerWeights, version_number
from sage_jax.rollout.weight_transfer import require_success, transfer_named

_COUNTERS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "retries",
    "aborted",
    "stale_answers",
)
_ABORT_TIMEOUT_S = 5.0


class SglangEngine:
    """An `Engine` whose turns come from servers.

    Sampling: `seed` is folded to 31 bits; `choices` are refused; servers also stop at their model's own end-of-text
    ids; `sampled_logprobs` is None. A context that leaves no room is answered here, without a call.
    """

    def __init__(
        self,
        options: HttpOptions,
        *,
        vocab_size: int,
        max_length: int,
        write_weights: Callable[[Any, int], Path] | None = None,
        weight_transfer: str = "disk",
    ):
        """Connects to nothing yet.

        Args:
          options: servers, key, deadlines, retries.
          vocab_size: V of the policy; ids of answers must lie below it.
          max_length: longest context with its output, in tokens; the servers must take as much.
          write_weights: writes (params, version) to a folder; see weights.WeightFolders.
          weight_transfer: "disk" has the servers read that folder, which they must see; "tensor" sends what it holds.

        Raises:
          ConfigError: another `weight_transfer`, or "tensor" without torch.
        """
        self._client = HttpClient(options)
        self._urls, self._router = options.urls, options.router
        self._vocab_size, self._max_length, self._write = vocab_size, max_length, write_weights
        self._pool = ServerPool(self._urls, rest_s=options.rest_s, rest_max_s=options.rest_max_s)
        self._weights = ServerWeights(self._client, self._urls, self._pool, transfer_named(weight_transfer))
        self._busy: dict[str, asyncio.Task] = {}  # by session
        self._name, self._numbers = secrets.token_hex(4), itertools.count()  # several clients may use one server
        self._side_tasks: set[asyncio.Task] = set()
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self._closed = False
        self._background = BackgroundLoop("sglang-client")

    # Turns.

    async def generate(self, request: GenerateRequest) -> Generation:
        """Returns one turn; cancelling the awaiting task aborts the request on its server.

        A turn that a server cut short has finish_reason "abort" and the tokens it had: no choice of the policy's.

        Raises:
          EngineError: unusable ids, choices, a session with two turns at once, a closed engine.
          ServerUnavailableError, ServerRefusedError, ServerProtocolError: see errors.py.
          StaleWeightsError: the answer came from other weights, and again after these had been pushed once more.
        """
        self._check(request)
        return await asyncio.wrap_future(self._submit(self._generate(request)))

    async def end_session(self, session: str) -> None:
        """Does nothing: servers drop what is not used."""

    async def _generate(self, request: GenerateRequest) -> Generation:
        task, holder = asyncio.current_task(), self._busy.get(request.session)
        assert task is not None  # for the type checker: this runs as a task
        if holder is not None and not holder.cancelling():
            raise EngineError(f"session {request.session!r} already has a turn in progress")
        self._busy[request.session] = task
        try:
            return await self._turn(request)
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine is closed") from None
            raise
        finally:
            if self._busy.get(request.session) is task:
                del self._busy[request.session]

    async def _turn(self, request: GenerateRequest) -> Generation:
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += len(request.ids)
        budget = min(request.sampling.max_new_tokens, self._max_length - len(request.ids))
        if budget <= 0:
            return Generation((), (), None, LENGTH, self._weights.version or 0, (), 0, len(request.ids))
        answer = await self._answer(request, budget)
        self._counters["cached_tokens"] += answer.cached_tokens
        self._counters["generated_tokens"] += len(answer.ids)
        self._counters["aborted"] += answer.finish_reason == ABORT
        return _generation(answer, len(request.ids))

    async def _answer(self, request: GenerateRequest, budget: int) -> Answer:
        """Asks until there is an answer or the retries are used up. Safe: an answer that is lost is never used."""
        asked: list[str] = []
        async for attempt in self._client.attempts():
            with attempt:
                self._counters["retries"] += attempt.num > 1
                if self._router:
                    return await self._fresh_answer(self._router, None, request, budget)
                with self._pool.ask(request.session, asked) as url:
                    return await self._fresh_answer(url, url, request, budget)
        raise AssertionError("the last attempt either returned or raised")

    async def _fresh_answer(self, url: str, server: str | None, request: GenerateRequest, budget: int) -> Answer:
        """Makes one attempt at an answer by the newest weights; behind a router the server is not known."""
        if server is not None:
            await self._weights.prepare(server)
        answer = await self._ask(url, request, budget)
        if self._weights.are_stale(answer):
            # The server was restarted, or someone else gave it weights: what it sampled is nobody's policy.
            self._counters["stale_answers"] += 1
            await self._weights.mend(server)
            answer = await self._ask(url, request, budget)
        if self._weights.are_stale(answer):
            raise StaleWeightsError(
                f"request {request.request_id!r}: answered by weights {answer.weight_version!r} although "
                f"{self._weights.name()!r} (version {self._weights.version}) had been made sure of; is another trainer "
                "using these servers?"
            )
        return answer

    async def _ask(self, url: str, request: GenerateRequest, budget: int) -> Answer:
        rid = f"{request.request_id}#{self._name}.{next(self._numbers)}"
        body = generate_body(request, rid=rid, budget=budget)
        try:
            found = await self._client.call(url, "/generate", body, timeout_s=self._client.options.timeout_s)
        except (asyncio.CancelledError, ServerUnavailableError) as error:
            if not isinstance(error, EngineError) or isinstance(error.__cause__, TimeoutError):
                self._abort_soon(rid, url)  # it may still be running there
            raise
        return read_answer(found, request, budget=budget, vocab_size=self._vocab_size, source=url)

    def _abort_soon(self, rid: str, url: str) -> None:
        async def abort() -> None:
            for target in self._urls if self._router else (url,):
                with contextlib.suppress(EngineError):
                    await self._client.call(target, "/abort_request", {"rid": rid}, timeout_s=_ABORT_TIMEOUT_S)

        if not self._closed:
            task = asyncio.get_running_loop().create_task(abort())
            self._side_tasks.add(task)
            task.add_done_callback(self._side_tasks.discard)

    def _check(self, request: GenerateRequest) -> None:
        if not request.ids:
            raise EngineError(f"request {request.request_id!r}: ids are empty; give at least one token")
        wrong = find_outside(self._vocab_size, ids=request.ids, stop_token_ids=request.sampling.stop_token_ids)
        if wrong:
            raise EngineError(f"request {request.request_id!r}: {wrong}")

    # Weights.

    def update_weights(self, params: Any, version: int) -> None:
        """Writes the weights to a folder and gives it to the servers; returns when those in reach confirm the version.

        Servers that cannot be reached are left out while another one takes the weights; see server_weights.py. When the
        calling thread is interrupted (Ctrl-C), servers go on taking them until they have, or until `close`.

        Raises:
          EngineError: the same version again, turns in progress, parameters that do not fit, no `write_weights`; the
            engine was closed meanwhile.
          ServerUnavailableError, ServerRefusedError, ServerProtocolError, StaleWeightsError: not taken.
        """
        if self._write is None:
            raise EngineError("this engine was made without write_weights, so it cannot push weights")
        if version == self._weights.version:
            raise EngineError(f"weight version {version} is already in use; give every update its own")
        self._submit(self._refuse_if_busy(version)).result()
        try:
            folder = self._write(params, version)
        except CheckpointError as error:
            raise EngineError(f"new weights do not fit: {error}") from error
        self._submit(self._push(folder, version)).result()

    async def _push(self, folder: Path, version: int) -> None:
        try:
            await self._weights.push_everywhere(folder, version)
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError(f"the engine was closed while servers took weight version {version}") from None
            raise

    @property
    def published(self) -> Published | None:
        """The weights that were pushed last: what another client of the same servers is to `adopt`."""
        return self._weights.published

    def adopt(self, published: Published | None) -> None:
        """Takes answers of these weights alone from now on, as if this client had pushed them itself."""
        if published != self.published:
            self._submit(self._weights.adopt(published)).result()

    async def _refuse_if_busy(self, version: int) -> None:
        """Runs behind every turn that was asked for before, and after those that were cancelled have gone."""
        leaving = [task for task in self._busy.values() if task.cancelling()]
        await asyncio.gather(*leaving, return_exceptions=True)
        if self._busy:
            raise EngineError(f"cannot update to version {version}: {len(self._busy)} turns run; let them end first")

    # Control, from any thread but the engine's own. Each raises the errors of `generate`.

    def health(self) -> None:
        """Returns when every server answers /health; one attempt each. Raises ServerUnavailableError otherwise."""
        timeout = self._client.options.connect_timeout_s * 2
        for url in (*self._urls, *filter(None, [self._router])):
            self._submit(self._client.call(url, "/health", method="GET", timeout_s=timeout)).result()

    def health_generate(self) -> None:
        """Has every server sample one token."""
        self._everywhere("/health_generate", method="GET")

    def server_info(self) -> list[dict[str, Any]]:
        """Returns what each server says about itself."""
        return self._everywhere("/server_info", method="GET")

    def flush_cache(self) -> None:
        """Drops every server's prefix cache. Raises ServerRefusedError while turns run."""
        self._everywhere("/flush_cache")

    def pause(self, mode: str = "abort") -> None:
        """Holds generation on every server; running turns are treated as `mode` says: abort, retract or in_place."""
        self._everywhere("/pause_generation", {"mode": mode})

    def resume(self) -> None:
        """Ends `pause`."""
        self._everywhere("/continue_generation", {})

    def abort_all(self) -> None:
        """Ends all turns on every server, other clients' too."""
        self._everywhere("/abort_request", {"abort_all": True})

    def load_lora_adapter(self, name: str, path: str) -> None:
        """Loads an adapter on every server."""
        for url, found in zip(
            self._urls, self._everywhere("/load_lora_adapter", {"lora_name": name, "lora_path": path}), strict=True
        ):
            require_success(found, f"{url}/load_lora_adapter")

    def stats(self) -> dict[str, float]:
        """Returns counters since the start, turns in progress and the version pushed last."""
        return {
            **self._counters,
            "weights_pushed_again": float(self._weights.pushed_again),
            "running": float(len(self._busy)),
            "weight_version": float(self._weights.version or 0),
        }

    def close(self) -> None:
        """Ends connections; requests still running get an EngineError. The servers go on."""
        if not self._closed:
            self._closed = True
            self._background.close(self._client.close())

    def _everywhere(self, path: str, body: dict[str, Any] | None = None, *, method: str = "POST") -> list[Any]:
        async def calls() -> list[Any]:
            return await asyncio.gather(*(self._client.control(url, path, body, method=method) for url in self._urls))

        return self._submit(calls()).result()

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._closed:
            work.close()
            raise EngineError("the engine is closed")
        return self._background.submit(work)


def _generation(answer: Answer, prompt_tokens: int) -> Generation:
    return Generation(
        ids=answer.ids,
        logprobs=answer.logprobs,
        sampled_logprobs=None,
        finish_reason=answer.finish_reason,
        weight_version=version_number(answer.weight_version),
        weight_versions=tuple(VersionSpan(version_number(span.version), span.start, span.end) for span in answer.spans),
        cached_tokens=answer.cached_tokens,
        prompt_tokens=prompt_tokens,
    )
