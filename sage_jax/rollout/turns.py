"""Turns in progress on the embedded engine, and what they become as rows of its programs. No jax calls."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sage_jax.rollout.choices import ChoiceTrie, fill_mask
from sage_jax.rollout.engine import GenerateRequest, Generation, VersionSpan
from sage_jax.rollout.programs import CopyRows, DecodeRows, EngineConfig, PrefillRows
from sage_jax.rollout.sampling import SamplingRows
from sage_jax.rollout.slots import Slot, common_prefix


@dataclasses.dataclass(eq=False)
class Run:
    """A turn in progress."""

    request: GenerateRequest
    budget: int
    future: concurrent.futures.Future
    trie: ChoiceTrie | None
    filled: int = 0  # prompt tokens in the cache
    cached: int = 0
    prefix: SharedPrefix | None = None
    stale: bool = False  # the weights changed since the turn began
    ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    sampled_logprobs: list[float] = dataclasses.field(default_factory=list)
    spans: list[VersionSpan] = dataclasses.field(default_factory=list)

    @property
    def to_fill(self) -> int:
        """Prompt tokens still to prefill: all but the last one, which `decode` takes."""
        return len(self.request.ids) - 1 - self.filled

    @property
    def length(self) -> int:
        """Tokens of the context by now."""
        return len(self.request.ids) + len(self.ids)

    def allowed(self) -> tuple[int, ...] | None:
        """Ids that may come next: None means any, none means that a choice is complete."""
        return None if self.trie is None else self.trie.allowed(self.ids)

    def kept(self, *, sampled: bool) -> tuple[int, ...]:
        """Returns the ids that the slot may keep: those prefilled and, with `sampled`, those that decoding wrote."""
        if self.stale:
            return ()
        # The last prompt token is written by the decode step that samples the first token.
        if sampled and self.ids and self.trie is None:
            return (*self.request.ids, *self.ids[:-1])
        return self.request.ids[: self.filled]

    def restart(self) -> None:
        """Has the prompt prefilled anew, for a turn that has sampled nothing yet."""
        self.filled = self.cached = 0
        self.prefix = None

    def extend(self, version: int, ids: Sequence[int], logprobs: Sequence[float], sampled: Sequence[float]) -> None:
        """Appends what one dispatch sampled."""
        start, end = len(self.ids), len(self.ids) + len(ids)
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.sampled_logprobs.extend(sampled)
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version, start, end))

    def result(self, finish_reason: str, version: int) -> Generation:
        """Returns the finished turn."""
        return Generation(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            sampled_logprobs=tuple(self.sampled_logprobs),
            finish_reason=finish_reason,
            weight_version=version,
            weight_versions=tuple(self.spans),
            cached_tokens=self.cached,
            prompt_tokens=len(self.request.ids),
        )


@dataclasses.dataclass(frozen=True)
class SharedPrefix:
    """The beginning of a prompt that another slot holds, or is about to hold."""

    slot: Slot[Run]
    run: Run | None  # the turn that fills it; None where it lies already
    length: int

    def state(self) -> str:
        """Returns "ready" to be copied, "filling", or "gone"."""
        if self.run is not None and self.slot.run is self.run:
            if self.run.stale:
                return "gone"
            return "ready" if self.run.filled >= self.length else "filling"
        holds = self.slot.run is None and len(self.slot.kept) >= self.length
        same = self.run is None or self.slot.session == self.run.request.session
        return "ready" if holds and same else "gone"


def find_prefix(slots: Sequence[Slot[Run]], own: Slot[Run], least: int) -> SharedPrefix | None:
    """Returns the longest beginning of a turn's prompt that another slot has or fills.

    Args:
      slots: all slots; those with a turn were seated before.
      own: the slot of the turn.
      least: tokens that it must spare beyond what the turn's own slot holds.
    """
    turn, best = own.turn, None
    wanted = turn.request.ids[:-1]
    for slot in slots:
        if slot is own or (slot.run is not None and slot.run.stale):
            continue
        held = slot.kept if slot.run is None else slot.run.request.ids[:-1]
        enough = (best.length + 1) if best else turn.filled + least
        if len(held) >= enough <= len(wanted) and held[:enough] == wanted[:enough]:
            best = SharedPrefix(slot, slot.run, common_prefix(held, wanted))
    return best


def prefill_batch(config: EngineConfig, pieces: Sequence[tuple[Slot[Run], int, int]]) -> PrefillRows:
    """Lays out (slot, start, count) pieces of prompts."""
    count = config.pieces
    rows = PrefillRows(
        ids=_host((count, config.prefill_chunk)),
        slots=_host(count),
        starts=_host(count, fill=config.scratch),
        counts=_host(count),
    )
    for row, (slot, start, length) in enumerate(pieces):
        rows.ids[row, :length] = slot.turn.request.ids[start : start + length]
        rows.slots[row], rows.starts[row], rows.counts[row] = slot.index, start, length
    return rows


def copy_batch(config: EngineConfig, copies: Sequence[tuple[Slot[Run], SharedPrefix]]) -> CopyRows:
    """Lays out which slots get which beginnings."""
    rows = CopyRows(_host(config.rows), _host(config.rows), _host(config.rows))
    for row, (slot, prefix) in enumerate(copies):
        rows.sources[row], rows.targets[row], rows.counts[row] = prefix.slot.index, slot.index, prefix.length
    return rows


def decode_batch(config: EngineConfig, vocab_size: int, slots: Sequence[Slot[Run]]) -> DecodeRows:
    """Lays out the slots that decode next, in their order."""
    count = config.rows
    sampling = SamplingRows(
        seeds=_host((count, 2), np.uint32),
        temperature=_host(count, np.float32, 1),
        top_p=_host(count, np.float32, 1),
        top_k=_host(count),
    )
    ids, lengths, budgets = _host(count), _host(count), _host(count)
    rows = DecodeRows(_host(count), ids, lengths, budgets, _host((count, config.max_stop_ids), fill=-1), sampling)
    for row, slot in enumerate(slots):
        run, wanted = slot.turn, slot.turn.request.sampling
        rows.slots[row] = slot.index
        ids[row] = run.ids[-1] if run.ids else run.request.ids[-1]
        lengths[row] = run.length - 1
        budgets[row] = run.budget - len(run.ids)
        rows.stop_ids[row, : len(wanted.stop_token_ids)] = wanted.stop_token_ids
        sampling.seeds[row] = wanted.seed >> 32, wanted.seed & 0xFFFFFFFF
        sampling.temperature[row], sampling.top_p[row] = wanted.temperature, wanted.top_p
        sampling.top_k[row] = min(wanted.top_k, vocab_size)
    return rows


def choice_mask(config: EngineConfig, vocab_size: int, slots: Sequence[Slot[Run]]) -> np.ndarray:
    """Returns which ids each of the slots may sample next [S, V]."""
    mask = np.ones((config.rows, vocab_size), bool)
    for row, slot in enumerate(slots):
        fill_mask(mask[row], slot.turn.allowed() or ())
    return mask


def _host(shape: int | tuple[int, ...], dtype: Any = np.int32, fill: int = 0) -> Any:
    """Makes a NumPy array to be filled in and handed to a program, where it is a jax array."""
    return np.full(shape, fill, dtype)
