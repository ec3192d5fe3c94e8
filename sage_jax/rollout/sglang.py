"""A client of SGLang servers (or of our own, server.py) that is an `Engine`: same calls, same meanings, over HTTP.

A session sticks to one server, whose prefix cache then holds its history, and moves on when that server fails. Control
calls (weights, pause, abort) go to every server, since routers do not pass them on. Imports no jax.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sage_jax.errors import (
    CheckpointError,
    EngineError,
    ServerProtocolError,
    ServerRefusedError,
    ServerUnavailableError,
    StaleWeightsError,
)
from sage_jax.rollout.engine import ABORT, LENGTH, GenerateRequest, Generation, VersionSpan
from sage_jax.rollout.http_client import BackgroundLoop, HttpClient, HttpOptions
from sage_jax.rollout.http_types import Answer, generate_body, read_answer

_COUNTERS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "retries",
    "aborted",
    "stale_answers",
    "weights_pushed_again",
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
    ):
        """Connects to nothing yet.

        Args:
          options: servers, key, deadlines, retries.
          vocab_size: V of the policy; ids of answers must lie below it.
          max_length: longest context with its output, in tokens; the servers must take as much.
          write_weights: writes (params, version) to a folder that the servers see; see weights.WeightFolders.
        """
        self._client = HttpClient(options)
        self._urls, self._router = options.urls, options.router
        self._vocab_size, self._max_length, self._write = vocab_size, max_length, write_weights
        self._version: int | None = None  # None until weights were pushed: then any version will do
        self._folder: Path | None = None
        self._busy: dict[str, asyncio.Task] = {}  # by session
        self._numbers = itertools.count()
        self._repairing = asyncio.Lock()
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
            return Generation((), (), None, LENGTH, self._version or 0, (), 0, len(request.ids))
        answer = await self._ask(request, budget)
        if self._is_stale(answer):
            # The server was restarted, or someone else gave it weights: what it sampled is nobody's policy.
            self._counters["stale_answers"] += 1
            await self._push_where_stale()
            answer = await self._ask(request, budget)
            if self._is_stale(answer):
                raise StaleWeightsError(
                    f"request {request.request_id!r}: answered by weights {answer.weight_version!r} after version "
                    f"{self._version} had been pushed again; is another trainer using these servers?"
                )
        self._counters["cached_tokens"] += answer.cached_tokens
        self._counters["generated_tokens"] += len(answer.ids)
        self._counters["aborted"] += answer.finish_reason == ABORT
        return _generation(answer, len(request.ids))

    async def _ask(self, request: GenerateRequest, budget: int) -> Answer:
        """Asks until there is an answer or the retries are used up. Safe: an answer that is lost is never used."""
        async for attempt in self._client.attempts():
            with attempt:
                url = self._router or self._home(request.session, attempt.num - 1)
                rid = f"{request.request_id}#{next(self._numbers)}"
                body = generate_body(request, rid=rid, budget=budget)
                self._counters["retries"] += attempt.num > 1
                try:
                    found = await self._client.call(url, "/generate", body, timeout_s=self._client.options.timeout_s)
                except (asyncio.CancelledError, ServerUnavailableError) as error:
                    if not isinstance(error, EngineError) or isinstance(error.__cause__, TimeoutError):
                        self._abort_soon(rid, url)  # it may still be running there
                    raise
                return read_answer(found, request, budget=budget, vocab_size=self._vocab_size, source=url)
        raise AssertionError("the last attempt either returned or raised")

    def _home(self, session: str, moved: int) -> str:
        """Returns the server of a session, after so many moves to the next one."""
        digest = hashlib.blake2b(session.encode(), digest_size=8).digest()
        return self._urls[(int.from_bytes(digest, "big") + moved) % len(self._urls)]

    def _abort_soon(self, rid: str, url: str) -> None:
        async def abort() -> None:
            for target in self._urls if self._router else (url,):
                with contextlib.suppress(EngineError):
                    await self._client.call(target, "/abort_request", {"rid": rid}, timeout_s=_ABORT_TIMEOUT_S)

        if not self._closed:
            task = asyncio.get_running_loop().create_task(abort())
            self._side_tasks.add(task)
            task.add_done_callback(self._side_tasks.discard)

    def _is_stale(self, answer: Answer) -> bool:
        versions = {answer.weight_version, *(span.version for span in answer.spans)}
        return self._version is not None and versions != {str(self._version)}

    def _check(self, request: GenerateRequest) -> None:
        if not request.ids:
            raise EngineError(f"request {request.request_id!r}: ids are empty; give at least one token")
        for name, ids in (("ids", request.ids), ("stop_token_ids", request.sampling.stop_token_ids)):
            bad = [token for token in ids if not 0 <= token < self._vocab_size]
            if bad:
                raise EngineError(
                    f"request {request.request_id!r}: {name} has id {bad[0]}, outside 0 to {self._vocab_size - 1}"
                )

    # Weights.

    def update_weights(self, params: Any, version: int) -> None:
        """Writes the weights to a folder and has every server load it; returns when all confirm the version.

        Raises:
          EngineError: the same version again, turns in progress, parameters that do not fit, no `write_weights`.
          ServerUnavailableError, ServerRefusedError, StaleWeightsError: a server could not take them.
        """
        if self._write is None:
            raise EngineError("this engine was made without write_weights, so it cannot push weights")
        if version == self._version:
            raise EngineError(f"weight version {version} is already in use; give every update its own")
        self._submit(self._refuse_if_busy(version)).result()
        try:
            folder = self._write(params, version)
        except CheckpointError as error:
            raise EngineError(f"new weights do not fit: {error}") from error
        self._submit(self._push_everywhere(folder, version)).result()

    async def _refuse_if_busy(self, version: int) -> None:
        """Runs behind every turn that was asked for before, and after those that were cancelled have gone."""
        leaving = [task for task in self._busy.values() if task.cancelling()]
        await asyncio.gather(*leaving, return_exceptions=True)
        if self._busy:
            raise EngineError(f"cannot update to version {version}: {len(self._busy)} turns run; let them end first")

    async def _push_everywhere(self, folder: Path, version: int) -> None:
        results = await asyncio.gather(
            *(self._push(url, folder, version) for url in self._urls), return_exceptions=True
        )
        for error in filter(None, results):
            raise error
        self._folder, self._version = folder, version

    async def _push_where_stale(self) -> None:
        """Gives the current weights again to the servers that do not have them; one caller at a time."""
        async with self._repairing:
            if self._folder is None or self._version is None:
                return
            for url in self._urls:
                if await self._served_version(url) != str(self._version):
                    self._counters["weights_pushed_again"] += 1
                    await self._push(url, self._folder, self._version)

    async def _push(self, url: str, folder: Path, version: int) -> None:
        call = self._client.control
        # "abort": what still runs there belongs to no one who waits.
        await call(url, "/pause_generation", {"mode": "abort"})
        try:
            wanted = {"model_path": str(folder), "weight_version": str(version)}
            _require_success(await call(url, "/update_weights_from_disk", wanted), f"{url}/update_weights_from_disk")
            found = await self._served_version(url)
            if found != str(version):
                raise StaleWeightsError(f"{url}: says weight_version {found!r} after an update to {str(version)!r}")
        except EngineError:
            with contextlib.suppress(EngineError):  # the first error is the one to tell
                await call(url, "/continue_generation", {})
            raise
        await call(url, "/continue_generation", {})

    async def _served_version(self, url: str) -> str:
        info = await self._client.control(url, "/model_info", method="GET")
        if not isinstance(info, dict) or not isinstance(info.get("weight_version"), str):
            raise ServerProtocolError(f"{url}/model_info: no weight_version in {str(info)[:200]}")
        return info["weight_version"]

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
            _require_success(found, f"{url}/load_lora_adapter")

    def stats(self) -> dict[str, float]:
        """Returns counters since the start, turns in progress and the version pushed last."""
        return {**self._counters, "running": float(len(self._busy)), "weight_version": float(self._version or 0)}

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
        weight_version=_number(answer.weight_version),
        weight_versions=tuple(VersionSpan(_number(span.version), span.start, span.end) for span in answer.spans),
        cached_tokens=answer.cached_tokens,
        prompt_tokens=prompt_tokens,
    )


def _number(version: str) -> int:
    """Reads one of our versions; a server that was given none yet calls its weights otherwise, which is our 0."""
    return int(version) if version.isdecimal() else 0


def _require_success(found: Any, where: str) -> None:
    if not isinstance(found, dict) or found.get("success") is not True:
        raise ServerRefusedError(f"{where}: {str(found)[:500]}")
