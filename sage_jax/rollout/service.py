"""What the server does, without HTTP: turns for callers on one embedded engine, pauses, aborts, weights from disk.

All coroutines run on one event loop; the engine's own thread does the computing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sage_jax.errors import CheckpointError, ConfigError, EngineError
from sage_jax.models import hf
from sage_jax.models.hf_config import family_of
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.engine import ABORT, STOP, GenerateRequest, Generation, SamplingParams, find_outside
from sage_jax.rollout.http_requests import BadRequestError, Piece
from sage_jax.rollout.prefix_sessions import PrefixSessions

FIRST_VERSION = "default"  # SGLang's name for the weights a server started with


@dataclasses.dataclass
class _Live:
    """A request between arrival and answer."""

    piece: Piece
    running: bool = False
    aborted: bool = False
    retracted: bool = False
    retractions: int = 0


class EngineService:
    """One embedded engine behind the calls of SGLang's contract.

    Pausing holds new requests. A "retract" starts running ones anew after the pause; SGLang keeps their tokens.
    """

    def __init__(
        self, engine: EmbeddedEngine, folder: Path, tokenizer: Any = None, *, name: str = "", limit: int = 512
    ):
        """Keeps the arguments.

        Args:
          engine: generates; still to be closed by the caller.
          folder: model folder that its weights came from.
          tokenizer: of the model; None serves ids alone.
          name: served model name; empty is the folder's path.
          limit: requests at once; more are refused with 503.
        """
        self.engine, self.folder, self.tokenizer, self._name, self._limit = engine, folder, tokenizer, name, limit
        self._first_folder = folder  # new weights come from other folders; who asks by the first one's name still may
        self.eos_ids = end_of_text_ids(folder, tokenizer)
        self.limit_length = engine.config.max_length
        self.live: dict[str, _Live] = {}
        self._current = int(engine.stats()["weight_version"])
        self._versions = {self._current: FIRST_VERSION}  # names by the engine's own numbers
        self._sessions = PrefixSessions(engine.config.num_slots)
        self._changed = asyncio.Condition()
        self._open = True
        self._paused: str | None = None
        self._updating = asyncio.Lock()

    @property
    def name(self) -> str:
        """Served model name."""
        return self._name or str(self.folder)

    def answers_to(self, model: str) -> bool:
        """Tells whether a name, or the last part of its path, is that of the served model."""
        names = [self._name] if self._name else [str(self._first_folder), str(self.folder)]
        return any(model in (name, Path(name).name) for name in names)

    @property
    def weight_version(self) -> str:
        """Name of the weights in use."""
        return self._versions[self._current]

    async def generate(self, piece: Piece) -> dict[str, Any]:
        """Returns one answer of /generate.

        Raises:
          BadRequestError: unusable ids, a rid in use, or too many requests.
          EngineError: the engine failed.
        """
        self.engine.health()
        self._check(piece)
        live = self.live[piece.rid] = _Live(piece)
        began = time.time()
        try:
            result = await self._run(live)
        finally:
            del self.live[piece.rid]
        return self._payload(live, result, began)

    async def generate_all(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """Returns the answers of several sequences in order; the first error ends the others (see `generate`)."""
        if len(pieces) > self._limit:
            raise BadRequestError(f"{len(pieces)} sequences in one request: this server takes {self._limit} at once")
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.generate(piece)) for piece in pieces]
        except* EngineError as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _run(self, live: _Live) -> Generation:
        piece = live.piece
        sampling = piece.sampling
        if not piece.ignore_eos:
            stops = dict.fromkeys((*sampling.stop_token_ids, *self.eos_ids))
            sampling = dataclasses.replace(sampling, stop_token_ids=tuple(stops))
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._open or live.aborted)
            live.retracted = False
            if live.aborted:
                return Generation((), (), None, ABORT, self._current, (), 0, len(piece.ids))
            session, context, live.running = self._sessions.claim(piece.ids), piece.ids, True
            try:
                result = await self.engine.generate(GenerateRequest(piece.rid, session, piece.ids, sampling))
                context = (*piece.ids, *result.ids)
            finally:
                self._sessions.release(session, context)
                await self._leave(live)
            if result.finish_reason != ABORT or not live.retracted:
                return result
            live.retractions += 1

    async def _leave(self, live: _Live) -> None:
        live.running = False
        async with self._changed:
            self._changed.notify_all()

    def _check(self, piece: Piece) -> None:
        vocab, stops = self.engine.model.vocab_size, self.engine.config.max_stop_ids
        stop_ids = piece.sampling.stop_token_ids
        if len(self.live) >= self._limit:
            raise BadRequestError("The request queue is full.", 503)
        if piece.rid in self.live:
            raise BadRequestError(f"Duplicate request ID detected: {piece.rid}")
        if len(piece.ids) >= self.limit_length:
            raise BadRequestError(
                f"The input ({len(piece.ids)} tokens) is longer than the model's context length "
                f"({self.limit_length} tokens)."
            )
        if wrong := find_outside(vocab, input_ids=piece.ids, stop_token_ids=stop_ids):
            raise BadRequestError(wrong)
        if len(stop_ids) + len(self.eos_ids) > stops:
            raise BadRequestError(f"stop_token_ids: this server takes {stops - len(self.eos_ids)} at most")

    def _payload(self, live: _Live, result: Generation, began: float) -> dict[str, Any]:
        piece, now = live.piece, time.time()
        meta: dict[str, Any] = {
            "id": piece.rid,
            "finish_reason": _finish_reason(result),
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": len(result.ids),
            "cached_tokens": result.cached_tokens,
            "cached_tokens_details": None,
            "weight_version": self._versions[result.weight_version],
            "weight_versions": [
                {"version": self._versions[span.version], "start": span.start, "end": span.end}
                for span in result.weight_versions
            ],
            "num_retractions": live.retractions,
            "reasoning_tokens": 0,
            "dp_rank": None,
            "e2e_latency": now - began,
            "response_sent_to_client_ts": now,
        }
        if piece.logprobs:
            texts = self._texts(result.ids) if piece.logprob_text else [None] * len(result.ids)
            entries = zip(result.logprobs, result.ids, texts, strict=True)
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [list(entry) for entry in entries]
            meta["output_token_logprobs_length"] = len(result.ids)
        payload = {"output_ids": list(result.ids), "meta_info": meta}
        if self.tokenizer is not None:
            ids = result.ids[:-1] if piece.trim_stop and result.finish_reason == STOP else result.ids
            text = self.tokenizer.decode(list(ids), skip_special_tokens=piece.skip_special_tokens)
            payload = {"text": text, **payload}
        return payload

    def _texts(self, ids: tuple[int, ...]) -> list[str | None]:
        return [None if self.tokenizer is None else self.tokenizer.decode([token]) for token in ids]

    async def check_generates(self) -> None:
        """Samples one token, pause or not. Raises EngineError when the engine cannot."""
        name = f"health-{uuid.uuid4().hex}"
        await self.engine.generate(GenerateRequest(name, name, (0,), SamplingParams(1, temperature=0.0)))
        await self.engine.end_session(name)

    async def pause(self, mode: str) -> None:
        """Holds new requests; running ones end ("abort"), start anew later ("retract") or run on ("in_place")."""
        self._open, self._paused = False, mode
        if mode == "abort":
            await self.abort(None)
        elif mode == "retract":
            for rid, live in list(self.live.items()):
                live.retracted = True
                await self.engine.abort(rid)

    async def resume(self) -> None:
        """Ends a pause."""
        self._paused = None
        await self._set_open(True)

    async def abort(self, rid: str | None) -> None:
        """Ends a request with all of its samples and prompts, or everything with None; unknown names are fine."""
        chosen = [live for name, live in self.live.items() if rid in (None, name) or name.startswith(f"{rid}_")]
        for live in chosen:
            live.aborted, live.retracted = True, False
        async with self._changed:
            self._changed.notify_all()
        for live in chosen:
            await self.engine.abort(live.piece.rid)

    async def flush(self) -> bool:
        """Drops what idle sessions left in the cache; False, and nothing done, while requests run."""
        if self.live:
            return False
        for session in self._sessions.clear():
            await self.engine.end_session(session)
        return True

    async def update_weights(self, path: str, version: str | None, *, abort_all: bool = False) -> int:
        """Loads a model folder of the same shape between turns; returns how many turns were paused meanwhile.

        Without a pause, running turns end first and new ones wait. Old weights and version stay after any error.

        Raises:
          BadRequestError: a folder that cannot be read or holds another model.
        """
        async with self._updating:
            self._open = False
            try:
                if abort_all:
                    await self.abort(None)
                if self._paused is None or abort_all:
                    async with self._changed:
                        await self._changed.wait_for(lambda: not any(live.running for live in self.live.values()))
                held = len(self.live)
                await asyncio.to_thread(self._load, path, version)
                return held
            finally:
                await self._set_open(self._paused is None)

    def _load(self, path: str, version: str | None) -> None:
        folder, number = Path(path), max(self._versions) + 1
        try:
            model, params = hf.load(folder, compute_dtype=self.engine.model.dtype)
        except (CheckpointError, ConfigError, OSError) as error:
            raise BadRequestError(f"Failed to update weights: {error}") from error
        if model != self.engine.model:
            raise BadRequestError(f"Failed to update weights: {folder} holds another model than the one served")
        # Named first: a turn may end on the new weights before update_weights returns.
        self._versions[number] = self.weight_version if version is None else version
        self.engine.update_weights(params, number, running="continue")
        self._current, self.folder = number, folder

    async def _set_open(self, value: bool) -> None:
        self._open = value
        async with self._changed:
            self._changed.notify_all()

    def model_info(self) -> dict[str, Any]:
        """Returns what GET /model_info tells."""
        return {
            "model_path": str(self.folder),
            "served_model_name": self.name,
            "tokenizer_path": str(self.folder),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self.weight_version,
            "load_format": "safetensors",
            "model_type": family_of(self.engine.model),
        }

    def server_info(self) -> dict[str, Any]:
        """Returns what GET /server_info tells: sizes, and the engine's counters as internal_states."""
        sizes = dataclasses.asdict(self.engine.config)
        return {
            **self.model_info(),
            "context_length": self.limit_length,
            "max_running_requests": self.engine.config.num_slots,
            "max_total_num_tokens": self.engine.config.num_slots * self.limit_length,
            "engine_config": sizes,
            "is_paused": self._paused is not None,
            "internal_states": [dict(self.engine.stats())],
        }


def end_of_text_ids(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """Returns the ids at which a model's own files say that text ends."""
    found: list[Any] = [getattr(tokenizer, "eos_token_id", None)]
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if path.is_file():
            values: Mapping[str, Any] = json.loads(path.read_text())
            ids = values.get("eos_token_id")
            found += ids if isinstance(ids, list) else [ids]
    return tuple(dict.fromkeys(token for token in found if isinstance(token, int)))


def _finish_reason(result: Generation) -> dict[str, Any]:
    if result.finish_reason == STOP:
        return {"type": "stop", "matched": result.ids[-1]}
    if result.finish_reason == ABORT:
        message = "Abort in generation" if result.ids else "Abort before prefill"
        return {"type": "abort", "message": message, "status_code": None, "err_type": None}
    return {"type": "length", "length": len(result.ids)}
