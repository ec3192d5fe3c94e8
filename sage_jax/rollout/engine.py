"""What a generation engine is: token ids in, token ids with log-probabilities out.

Two implementations answer to it: the embedded JAX engine (embedded.py) and a client of an SGLang server. Nothing here
imports jax, so that agents and HTTP clients stay light.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from sage_jax.errors import AbortedError, ConfigError
from sage_jax.types import VersionSpan

STOP, LENGTH, ABORT = "stop", "length", "abort"
_COLDEST = 1e-6  # logits divided by less may leave the numbers that float32 has


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise ConfigError(f"sampling.{name}={value!r}: must be {wanted}")


def is_int(value: object) -> bool:
    """Tells whether a value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def find_outside(vocab_size: int, **named: Sequence[int]) -> str:
    """Returns what is wrong with the first token id outside of a vocabulary; "" when there is none."""
    for name, ids in named.items():
        for token in ids:
            if not 0 <= token < vocab_size:
                return f"{name} has id {token}, outside 0 to {vocab_size - 1}"
    return ""


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How one turn is sampled. Raises ConfigError naming the field.

    Attributes:
      max_new_tokens: the turn ends with "length" after this many tokens.
      temperature: 0 takes the most likely token, lowest id first among equals.
      top_p: keep the fewest most likely tokens whose mass reaches this; 1 is off.
      top_k: keep this many most likely tokens (more only among exact equals); 0 is off. With both, a token must pass
        both, each judged on the whole distribution.
      stop_token_ids: the turn ends with "stop" after any of these; the stop token is part of the output.
      seed: with the position in the context it decides every draw; 0 <= seed < 2**63.
      choices: sample only among these token-id sequences, and stop after a complete one. None of them may begin
        another (end each with a stop token where that could happen). None means free sampling.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    choices: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _require(
            is_int(self.max_new_tokens) and self.max_new_tokens >= 1,
            "max_new_tokens",
            self.max_new_tokens,
            "a whole number of at least 1",
        )
        _require(
            _is_number(self.temperature) and (self.temperature == 0 or self.temperature >= _COLDEST),
            "temperature",
            self.temperature,
            f"0, or {_COLDEST:g} or more",
        )
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(is_int(self.top_k) and self.top_k >= 0, "top_k", self.top_k, "a whole number, 0 for off")
        _require(is_int(self.seed) and 0 <= self.seed < 2**63, "seed", self.seed, "a whole number in [0, 2**63)")
        _require(
            all(is_int(i) and i >= 0 for i in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "token ids"
        )
        if self.choices is not None:
            object.__setattr__(self, "choices", tuple(tuple(choice) for choice in self.choices))
            self._check_choices(self.choices)

    def _check_choices(self, choices: tuple[tuple[int, ...], ...]) -> None:
        _require(
            bool(choices) and all(choices), "choices", choices, "None or one or more sequences of at least 1 token"
        )
        _require(all(is_int(i) and i >= 0 for choice in choices for i in choice), "choices", choices, "token ids")
        longest = max(choices, key=len)
        _require(
            len(longest) <= self.max_new_tokens, "choices", longest, f"max_new_tokens={self.max_new_tokens} or less"
        )
        # In sorted order a sequence stands directly before those that it begins.
        ordered = sorted(choices)
        for first, second in zip(ordered, ordered[1:], strict=False):
            _require(
                second[: len(first)] != first,
                "choices",
                (first, second),
                "distinct and none the beginning of another; end each with a stop token",
            )


@dataclasses.dataclass(frozen=True)
class GenerateRequest:
    """One turn to generate.

    Attributes:
      request_id: for logs and errors; unique among running requests.
      session: one growing context (an episode, say). Its keys and values are kept between turns while there is room,
        so that a turn costs its new tokens. A context that does not continue the last one is simply prefilled.
      ids: the whole context so far, at least one token.
      sampling: how to sample.
    """

    request_id: str
    session: str
    ids: tuple[int, ...]
    sampling: SamplingParams


@dataclasses.dataclass(frozen=True)
class Generation:
    """What an engine answers.

    Attributes:
      ids: the sampled ids, stop token included. Empty when the context left no room.
      logprobs: of each id under softmax(logits / T), before top-k, top-p and choices; at T = 0 under softmax(logits).
      sampled_logprobs: of each id under the distribution it was drawn from (truncated and renormalised); 0 at T = 0.
        None from an engine that does not tell.
      finish_reason: "stop" (stop token, or a complete choice), "length" (max_new_tokens or the engine's context
        length) or "abort".
      weight_version: version of the weights at the end of the turn.
      weight_versions: spans of the output by version, in order; more than one only after an update in mid-turn.
      cached_tokens: prompt tokens whose keys and values were still there.
      prompt_tokens: length of the context.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampled_logprobs: tuple[float, ...] | None
    finish_reason: str
    weight_version: int
    weight_versions: tuple[VersionSpan, ...]
    cached_tokens: int
    prompt_tokens: int


def require_whole(generation: Generation, name: str) -> Generation:
    """Returns a generation that ended by itself: what stands in one that was cut short is no choice of the policy's.

    Raises:
      AbortedError: it has finish_reason "abort"; the message has `name`.
    """
    if generation.finish_reason == ABORT:
        raise AbortedError(f"{name}: the engine aborted the turn after {len(generation.ids)} tokens")
    return generation


@runtime_checkable
class Engine(Protocol):
    """Generates turns for many sessions at once.

    `generate` and `end_session` are awaited from an asyncio loop; the others are called between rounds, from any
    thread. Every failure is an EngineError.
    """

    async def generate(self, request: GenerateRequest) -> Generation:
        """Returns one turn. A context without room answers "length", an unusable request raises EngineError."""

    async def end_session(self, session: str) -> None:
        """Forgets what was kept for a session; unknown names are fine."""

    def update_weights(self, params: Any, version: int) -> None:
        """Replaces the weights and drops everything computed with the old ones."""

    def health(self) -> None:
        """Returns when the engine can serve. Raises EngineError saying why it cannot."""

    def stats(self) -> Mapping[str, float]:
        """Returns counters since the start: tokens, seconds, sessions."""

    def close(self) -> None:
        """Stops; requests still running get an EngineError. May be called twice."""
