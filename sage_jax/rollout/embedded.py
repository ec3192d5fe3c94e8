"""The embedded engine: continuous batching over KV slots, in this process, in JAX.

Callers await `generate`; one driver thread owns the device. It takes messages between dispatches, seats turns on
slots, prefills what their slots do not hold yet, then decodes all running slots a few tokens at a time. While it
waits for the device the interpreter is free, so that environments are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from sage_jax.errors import ConfigError, EngineError
from sage_jax.models import ModelConfig, Params, unstack_layers
from sage_jax.rollout.choices import ChoiceTrie
from sage_jax.rollout.engine import ABORT, LENGTH, STOP, GenerateRequest, Generation, find_outside
from sage_jax.rollout.layout import cache_shardings, weight_shardings
from sage_jax.rollout.programs import EngineConfig, compile_programs, empty_cache
from sage_jax.rollout.rounding import rounds_alike
from sage_jax.rollout.slots import Slot, SlotTable, common_prefix
from sage_jax.rollout.turns import Run, choice_mask, copy_batch, decode_batch, find_prefix, prefill_batch

_LOG = logging.getLogger(__name__)
_COUNTERS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "copied_tokens",
    "prefilled_tokens",
    "generated_tokens",
    "prefill_dispatches",
    "copy_dispatches",
    "decode_dispatches",
    "prefill_seconds",
    "decode_seconds",
)


class EmbeddedEngine:
    """An `Engine` in this process.

    A turn's tokens depend on the weights, its ids and its sampling parameters alone: not on its slot, on what else
    runs, on the order of arrival, or on whether its history was cached. That holds between engines of the same
    `EngineConfig` on the same kind of device.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Params,
        config: EngineConfig | None = None,
        *,
        version: int = 0,
        mesh: Mesh | None = None,
    ):
        """Starts the driver thread.

        Args:
          model: the model.
          params: its parameters, stacked or unstacked; copied, and held in the compute dtype where that is narrower.
          config: sizes.
          version: weight version of `params`.
          mesh: devices to run on (`layout.engine_mesh`); the first local device when None.

        Raises:
          ConfigError: the context is longer than the model's.
        """
        self.model, self.config = model, config or EngineConfig()
        if self.config.max_length > model.max_position:
            raise ConfigError(
                f"engine.max_length={self.config.max_length}: must be at most model.max_position={model.max_position}"
            )
        self._programs = compile_programs(model, self.config)
        self._mesh, cache = mesh, jax.eval_shape(functools.partial(empty_cache, model, self.config))
        self._weights_at: Any = jax.local_devices()[0]
        cache_at: Any = self._weights_at
        if mesh is not None:
            self._weights_at, cache_at = weight_shardings(model, mesh), cache_shardings(cache, mesh)
        self._params, self._version = self._own_copy(params), version
        # Zeros of the host: jax's own would lie on all devices of the learner's mesh, other hosts' too.
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), cache)
        self._cache = jax.device_put(zeros, cache_at, may_alias=False)
        self._slots: SlotTable[Run] = SlotTable(self.config.num_slots)
        self._waiting: list[Run] = []
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self._wake = threading.Condition()
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._open: set[concurrent.futures.Future] = set()
        self._closing = False
        self._error: EngineError | None = None
        self._thread = threading.Thread(target=self._drive, name="embedded-engine", daemon=True)
        self._thread.start()

    # What callers use, from any thread.

    async def generate(self, request: GenerateRequest) -> Generation:
        """Returns one turn; cancelling the awaiting task takes the request out.

        Raises:
          EngineError: unusable ids, a session with two turns at once, non-finite logits, a failed or closed engine.
        """
        self._check(request)
        budget = min(request.sampling.max_new_tokens, self.config.max_length - len(request.ids))
        choices = request.sampling.choices
        run = Run(request, budget, concurrent.futures.Future(), None if choices is None else ChoiceTrie(choices))
        return await asyncio.wrap_future(self._submit(functools.partial(self._admit, run), run.future))

    async def end_session(self, session: str) -> None:
        """Frees the session's slot once it is idle; unknown names are fine."""
        await asyncio.wrap_future(self._call(functools.partial(self._end_session, session)))

    async def abort(self, request_id: str) -> None:
        """Ends a turn between two dispatches: it is answered with what it has and "abort". Unknown ids are fine."""
        await asyncio.wrap_future(self._call(functools.partial(self._abort, request_id)))

    def update_weights(self, params: Params, version: int, *, running: str = "refuse") -> None:
        """Copies new weights in between two dispatches and drops all kept keys and values.

        Args:
          params: same structure and shapes as before; cast to the dtypes that the engine has.
          version: must differ from the current one.
          running: what to do about unfinished turns: "refuse" the update, let them "continue" on their old keys and
            values, with their tokens marked by version, or "abort" those that have begun, as `abort` does.

        Raises:
          EngineError: other shapes, the same version again, or turns running under "refuse".
        """
        if running not in ("refuse", "continue", "abort"):
            raise ConfigError(f"running={running!r}: must be 'refuse', 'continue' or 'abort'")
        new = self._own_copy(params)
        _check_same_shapes(self._params, new)
        self._call(functools.partial(self._replace_weights, new, version, running)).result()

    def warmup(self, *, choices: bool = False) -> None:
        """Compiles everything that serving needs (some seconds); with `choices` also the program for those.

        Counters start anew, and what slots kept is dropped. Raises EngineError while turns run or wait.
        """
        self._call(functools.partial(self._compile, choices)).result()

    def health(self) -> None:
        """Returns when the engine can serve; raises EngineError when it failed or was closed."""
        if self._error is not None:
            raise self._error

    def stats(self) -> dict[str, float]:
        """Returns counters since the start, and how many sessions and turns there are now."""
        return {
            **self._counters,
            "evictions": self._slots.evictions,
            "kept_sessions": self._slots.kept_sessions(),
            "running": len(self._slots.running()),
            "waiting": len(self._waiting),
            "weight_version": self._version,
            "compilations": self._programs.compilations(),
        }

    def close(self) -> None:
        """Stops the driver after its current dispatch; unanswered requests get an EngineError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _own_copy(self, params: Params) -> Params:
        """Unstacks the layers and copies every leaf: the trainer donates its own arrays to the next update."""
        # No program of ours: under the learner's mesh one would have to run on all of its devices.
        return jax.device_put(unstack_layers(params), self._weights_at, may_alias=False)

    def _narrow(self, params: Params) -> Params:
        """Casts weights to the compute dtype where that is narrower, as every program would when it uses them."""
        dtype = jax.numpy.dtype(self.model.dtype)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype.itemsize > dtype.itemsize else leaf, params)

    def _check(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        if not request.ids:
            raise EngineError(f"request {request.request_id!r}: ids are empty; give at least one token")
        choices = {f"choices[{n}]": choice for n, choice in enumerate(sampling.choices or ())}
        wrong = find_outside(self.model.vocab_size, ids=request.ids, stop_token_ids=sampling.stop_token_ids, **choices)
        if wrong:
            raise EngineError(f"request {request.request_id!r}: {wrong}")
        if len(sampling.stop_token_ids) > self.config.max_stop_ids:
            raise EngineError(
                f"request {request.request_id!r}: {len(sampling.stop_token_ids)} stop_token_ids; this engine takes "
                f"engine.max_stop_ids={self.config.max_stop_ids}"
            )

    def _submit(self, message: Callable[[], None], future: concurrent.futures.Future) -> concurrent.futures.Future:
        with self._wake:
            self.health()
            if self._closing:
                raise EngineError("the engine is closed")
            self._open.add(future)
            future.add_done_callback(self._open.discard)
            self._inbox.append(message)
            self._wake.notify()
        return future

    def _call(self, function: Callable[[], Any]) -> concurrent.futures.Future:
        """Runs a function in the driver thread, between dispatches; its EngineError is the caller's."""
        future: concurrent.futures.Future = concurrent.futures.Future()

        def message() -> None:
            try:
                _answer(future, function())
            except EngineError as error:
                _refuse(future, error)

        return self._submit(message, future)

    # What the driver thread does.

    def _drive(self) -> None:
        reason = EngineError("the engine is closed")
        try:
            # This thread has no mesh but this one: what it runs stays on the engine's own devices.
            with contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
                self._params = self._narrow(self._params)
                if self.config.keep_sampled:
                    self._compare_rounding()
                while self._take_messages():
                    self._advance()
        except Exception as error:  # noqa: BLE001 - the thread's edge: whatever it was, every waiting request must hear
            reason = EngineError(f"the engine's driver failed: {type(error).__name__}: {error}")
            reason.__cause__ = error
        with self._wake:
            self._error = reason
            unanswered = list(self._open)
        for future in unanswered:
            _refuse(future, reason)

    def _compare_rounding(self) -> None:
        """Gives up keeping sampled tokens where a turn's bits would then depend on it."""
        alike, self._cache = rounds_alike(self.model, self.config, self._programs, self._params, self._cache)
        for slot in self._slots:  # a NaN of unusable weights must not stay
            self._cache = self._programs.clear(None, self._cache, np.int32(slot.index))
        if not alike:
            _LOG.info("prefill and decode round differently here: sampled tokens are prefilled again")
            self.config = dataclasses.replace(self.config, keep_sampled=False)
            self._programs = compile_programs(self.model, self.config)

    def _take_messages(self) -> bool:
        """Handles what callers sent, waiting when there is nothing to do; False when the engine closes."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._inbox or self._waiting or self._slots.running())
            messages = list(self._inbox)
            self._inbox.clear()
            if self._closing:
                return False
        for message in messages:
            message()
        return True

    def _admit(self, run: Run) -> None:
        session = run.request.session
        others = [*self._waiting, *(slot.turn for slot in self._slots.running())]
        if any(other.request.session == session for other in others if not other.future.cancelled()):
            _refuse(run.future, EngineError(f"session {session!r} already has a turn in progress"))
            return
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += len(run.request.ids)
        if run.budget <= 0:
            _answer(run.future, run.result(LENGTH, self._version))
        else:
            self._waiting.append(run)

    def _advance(self) -> None:
        """Does one round: seats, then prefill as long as any is left, else one decode dispatch of each kind."""
        self._remove_cancelled()
        self._waiting = [run for run in self._waiting if not self._seat(run)]
        running = self._slots.running()
        if any(slot.turn.to_fill for slot in running):
            self._copy_prefixes(running)
            if pieces := self._next_pieces(running):
                self._prefill(pieces)
            return
        # Contexts of like length side by side: a group's attention goes as far as its longest one.
        running.sort(key=lambda slot: slot.turn.length)
        plain = [slot for slot in running if slot.turn.trie is None]
        choosing = [slot for slot in running if slot.turn.trie is not None]
        if plain:
            self._decode(plain, self._programs.decode)
        if choosing:
            mask = choice_mask(self.config, self.model.vocab_size, choosing)
            self._decode(choosing, self._programs.decode_choices, mask)

    def _end_session(self, session: str) -> None:
        self._remove_cancelled()
        self._slots.drop(session)

    def _abort(self, request_id: str) -> None:
        for run in [run for run in self._waiting if run.request.request_id == request_id]:
            self._waiting.remove(run)
            _answer(run.future, run.result(ABORT, self._version))
        for slot in self._slots.running():
            if slot.turn.request.request_id == request_id:
                self._cut_short(slot)

    def _cut_short(self, slot: Slot[Run]) -> None:
        run = slot.turn
        self._leave(slot)
        _answer(run.future, run.result(ABORT, self._version))

    def _remove_cancelled(self) -> None:
        self._waiting = [run for run in self._waiting if not run.future.cancelled()]
        for slot in self._slots.running():
            if slot.turn.future.cancelled():
                self._leave(slot)

    def _seat(self, run: Run) -> bool:
        slot = self._slots.start(run.request.session, run)
        if slot is None:
            return False
        run.filled = run.cached = common_prefix(slot.kept, run.request.ids[:-1])
        run.prefix = find_prefix(list(self._slots), slot, self.config.share_from)
        self._counters["cached_tokens"] += run.cached
        return True

    def _leave(self, slot: Slot[Run]) -> None:
        """Frees the slot for the session's next turn, which finds there what prefill would write (see programs.py)."""
        self._slots.stop(slot, slot.turn.kept(sampled=self.config.keep_sampled))

    def _next_pieces(self, running: list[Slot[Run]]) -> list[tuple[Slot[Run], int, int]]:
        """Returns (slot, start, count) of the pieces that fit into one dispatch, oldest turn first."""
        pieces: list[tuple[Slot[Run], int, int]] = []
        for slot in running:
            if slot.turn.prefix is not None:  # an older turn fills it
                continue
            start, end = slot.turn.filled, slot.turn.filled + slot.turn.to_fill
            while start < end and len(pieces) < self.config.pieces:
                count = min(self.config.prefill_chunk, end - start)
                pieces.append((slot, start, count))
                start += count
        return pieces

    def _copy_prefixes(self, running: list[Slot[Run]]) -> None:
        """Copies the beginnings that other slots hold by now; those that will not come are prefilled instead."""
        copies = []
        for slot in running:
            prefix = slot.turn.prefix
            state = "filling" if prefix is None else prefix.state()
            if prefix is None or state == "filling":
                continue
            slot.turn.prefix = None
            if state == "ready":
                copies.append((slot, prefix))
        if not copies:
            return
        self._cache = self._programs.copy(None, self._cache, copy_batch(self.config, copies))
        for slot, prefix in copies:
            spared = prefix.length - slot.turn.filled
            slot.turn.filled = slot.turn.cached = prefix.length
            self._counters["cached_tokens"] += spared
            self._counters["copied_tokens"] += spared
        self._counters["copy_dispatches"] += 1

    def _prefill(self, pieces: list[tuple[Slot[Run], int, int]]) -> None:
        began = time.perf_counter()
        rows = prefill_batch(self.config, pieces)
        for slot, start, length in pieces:
            slot.turn.filled = start + length
        self._cache = jax.block_until_ready(self._programs.prefill(self._params, self._cache, rows))
        self._counters["prefilled_tokens"] += int(rows.counts.sum())
        self._counters["prefill_dispatches"] += 1
        self._counters["prefill_seconds"] += time.perf_counter() - began

    def _decode(self, slots: list[Slot[Run]], program: Callable[..., Any], *mask: np.ndarray) -> None:
        began = time.perf_counter()
        rows = decode_batch(self.config, self.model.vocab_size, slots)
        self._cache, out = program(self._params, self._cache, rows, *mask)
        out = jax.device_get(out)
        self._counters["generated_tokens"] += int(out.counts.sum())
        self._counters["decode_dispatches"] += 1
        self._counters["decode_seconds"] += time.perf_counter() - began
        for row, slot in enumerate(slots):
            columns = (array[: out.counts[row], row] for array in (out.ids, out.logprobs, out.sampled_logprobs))
            slot.turn.extend(self._version, *(column.tolist() for column in columns))
            self._finish_if_over(slot, bool(out.stopped[row]))

    def _finish_if_over(self, slot: Slot[Run], stopped: bool) -> None:
        run = slot.turn
        if not np.isfinite(run.logprobs).all():
            self._leave(slot)
            # Masked keys still enter products, times 0: a NaN left here would reach the slot's next session.
            self._cache = self._programs.clear(None, self._cache, np.int32(slot.index))
            self._slots.stop(slot, ())
            _refuse(
                run.future,
                EngineError(f"request {run.request.request_id!r}: log-probs are not finite at version {self._version}"),
            )
            return
        complete = run.allowed() == ()
        if stopped or complete or len(run.ids) >= run.budget:
            self._leave(slot)
            _answer(run.future, run.result(STOP if stopped or complete else LENGTH, self._version))

    def _replace_weights(self, params: Params, version: int, running: str) -> None:
        if version == self._version:
            raise EngineError(f"weight version {version} is already in use; give every update its own")
        self._remove_cancelled()
        if running == "refuse":
            self._require_idle(f"update to version {version}", ", or pass running='continue'")
        for slot in self._slots.running():
            if running == "abort":
                self._cut_short(slot)
            elif slot.turn.ids:
                slot.turn.stale = True
            else:  # wholly of the new weights, for the price of its prompt
                slot.turn.restart()
        self._slots.forget()
        # In the dtypes that the programs were compiled for.
        self._params = jax.tree.map(lambda old, leaf: leaf.astype(old.dtype), self._params, params)
        self._version = version

    def _require_idle(self, wanted: str, instead: str = "") -> None:
        if (running := self._slots.running()) or self._waiting:
            raise EngineError(
                f"cannot {wanted}: {len(running)} turns run and {len(self._waiting)} wait; let them end first{instead}"
            )

    def _compile(self, choices: bool) -> None:
        self._remove_cancelled()
        self._require_idle("warm up")  # a slot is cleared below
        self._prefill([])
        self._decode([], self._programs.decode)
        if choices:
            self._decode([], self._programs.decode_choices, choice_mask(self.config, self.model.vocab_size, []))
        self._cache = self._programs.copy(None, self._cache, copy_batch(self.config, []))
        self._cache = self._programs.clear(None, self._cache, np.int32(0))
        self._slots.forget()
        self._counters = dict.fromkeys(_COUNTERS, 0.0)


def _check_same_shapes(old: Params, new: Params) -> None:
    shapes = [
        {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (old, new)
    ]
    for name in shapes[0].keys() | shapes[1].keys():
        was, now = shapes[0].get(name), shapes[1].get(name)
        if was != now:
            raise EngineError(f"new weights do not fit: {name} has shape {now}, the engine has {was}")


def _answer(future: concurrent.futures.Future, value: Any) -> None:
    """Sets a result unless the caller cancelled in the meantime."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)


def _refuse(future: concurrent.futures.Future, error: Exception) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
