"""SGLang's /generate on the wire: how a request is written, and how an answer is checked before anyone uses it.

Nothing of a server's answer goes further unchecked: a wrong length or a NaN here would become a wrong loss there.
Works without jax and without a connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import reprlib
from collections.abc import Mapping
from typing import Any

from sage_jax.errors import EngineError, ServerProtocolError
from sage_jax.rollout.engine import ABORT, LENGTH, STOP, GenerateRequest, SamplingParams, is_int

_ROUNDING = 1e-4  # a certain token's log-prob may come out a little above 0; more than this is no log-prob


@dataclasses.dataclass(frozen=True)
class TextSpan:
    """Output tokens [start, end) were sampled by weights whose server-side name is `version`."""

    version: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Answer:
    """A checked answer of /generate. Weight versions are the server's texts.

    Attributes:
      ids: sampled ids.
      logprobs: of each id, finite and at most 0.
      finish_reason: "stop", "length" or "abort".
      weight_version: of the weights at the end.
      spans: weight versions over the output, without gaps.
      cached_tokens: prompt tokens that were not computed again.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    weight_version: str
    spans: tuple[TextSpan, ...]
    cached_tokens: int


def fold_seed(seed: int) -> int:
    """Folds a 63-bit seed into the 31 bits that every SGLang release takes; a seed below 2**31 stays as it is."""
    return (seed ^ (seed >> 31) ^ (seed >> 62)) & 0x7FFFFFFF


def generate_body(request: GenerateRequest, *, rid: str, budget: int) -> dict[str, Any]:
    """Writes the body of POST /generate.

    Args:
      request: what to generate.
      rid: name of this attempt, unique on the server.
      budget: tokens to sample at most, at least 1.

    Raises:
      EngineError: the request asks for choices, which the contract does not have.
    """
    sampling = request.sampling
    if sampling.choices is not None:
        raise EngineError(
            f"request {request.request_id!r}: sampling.choices is not in SGLang's contract; use the embedded engine"
        )
    return {
        "rid": rid,
        "input_ids": list(request.ids),
        "sampling_params": _sampling_body(sampling, budget),
        "return_logprob": True,
        "stream": False,
    }


def _sampling_body(sampling: SamplingParams, budget: int) -> dict[str, Any]:
    return {
        "max_new_tokens": budget,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,  # their word for "off"
        "stop_token_ids": list(sampling.stop_token_ids),
        "sampling_seed": fold_seed(sampling.seed),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }


def read_answer(body: Any, request: GenerateRequest, *, budget: int, vocab_size: int, source: str) -> Answer:
    """Checks the body of an answer.

    Args:
      body: parsed JSON.
      request: what was asked.
      budget: tokens that were asked for at most.
      vocab_size: V of the policy.
      source: server's address, for messages.

    Raises:
      ServerProtocolError: says what is wrong, of which request, from which server.
    """
    check = _Checker(f"{source}: answer to {request.request_id!r}")
    meta = check.mapping(check.mapping(body, "the answer").get("meta_info"), "meta_info")
    ids = _read_ids(check, body, budget, vocab_size)
    reason = _read_reason(check, meta, ids)
    version = check.text(meta.get("weight_version"), "weight_version")
    cached = check.count(meta.get("cached_tokens", 0), "cached_tokens")
    prompt = check.count(meta.get("prompt_tokens"), "prompt_tokens")
    completion = check.count(meta.get("completion_tokens"), "completion_tokens")
    check.that(prompt == len(request.ids), f"prompt_tokens is {prompt}; {len(request.ids)} were sent")
    check.that(completion == len(ids), f"completion_tokens is {completion}; there are {len(ids)} output_ids")
    check.that(cached <= prompt, f"cached_tokens is {cached}, more than the prompt's {prompt}")
    return Answer(
        ids=ids,
        logprobs=_read_logprobs(check, meta, ids),
        finish_reason=reason,
        weight_version=version,
        spans=_read_spans(check, meta, version, len(ids)),
        cached_tokens=cached,
    )


@dataclasses.dataclass(frozen=True)
class _Checker:
    """Raises ServerProtocolError with a common beginning."""

    where: str

    def that(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise ServerProtocolError(f"{self.where}: {otherwise}")

    def mapping(self, value: Any, name: str) -> Mapping[str, Any]:
        self.that(isinstance(value, dict), f"{name} is {_shown(value)}; a JSON object is expected")
        return value

    def sequence(self, value: Any, name: str) -> list:
        self.that(isinstance(value, list), f"{name} is {_shown(value)}; a list is expected")
        return value

    def text(self, value: Any, name: str) -> str:
        self.that(isinstance(value, str), f"{name} is {_shown(value)}; a text is expected")
        return value

    def count(self, value: Any, name: str) -> int:
        self.that(is_int(value) and value >= 0, f"{name} is {_shown(value)}; a whole number is expected")
        return value


def _as_float(value: Any) -> float:
    """Returns a number as float, NaN for anything that has none: another type, or too large an integer."""
    if isinstance(value, float) or is_int(value):
        with contextlib.suppress(OverflowError):
            return float(value)
    return math.nan


def _shown(value: Any) -> str:
    text = reprlib.repr(value)  # short, however large or deep the value is
    return text if len(text) <= 60 else text[:57] + "..."


def _read_ids(check: _Checker, body: Mapping[str, Any], budget: int, vocab_size: int) -> tuple[int, ...]:
    ids = check.sequence(body.get("output_ids"), "output_ids")
    for position, token in enumerate(ids):
        check.that(
            is_int(token) and 0 <= token < vocab_size,
            f"output_ids[{position}] is {_shown(token)}, outside 0 to {vocab_size - 1}",
        )
    check.that(len(ids) <= budget, f"{len(ids)} output_ids; max_new_tokens was {budget}")
    return tuple(ids)


def _read_reason(check: _Checker, meta: Mapping[str, Any], ids: tuple[int, ...]) -> str:
    reason = check.mapping(meta.get("finish_reason"), "finish_reason")
    kind = check.text(reason.get("type"), "finish_reason.type")
    check.that(
        kind in (STOP, LENGTH, ABORT), f"finish_reason.type is {_shown(kind)}; stop, length or abort is expected"
    )
    check.that(bool(ids) or kind == ABORT, f"no output_ids, but finish_reason {kind!r}")
    return kind


def _read_logprobs(check: _Checker, meta: Mapping[str, Any], ids: tuple[int, ...]) -> tuple[float, ...]:
    entries = check.sequence(meta.get("output_token_logprobs", None if ids else []), "output_token_logprobs")
    check.that(len(entries) == len(ids), f"{len(entries)} output_token_logprobs for {len(ids)} output_ids")
    logprobs = []
    for position, (entry, token) in enumerate(zip(entries, ids, strict=True)):
        name = f"output_token_logprobs[{position}]"
        check.that(isinstance(entry, list) and len(entry) >= 2, f"{name} is {_shown(entry)}; [logprob, id] is expected")
        value, other = entry[0], entry[1]
        check.that(other == token, f"{name} is of id {_shown(other)}, but output_ids has {token}")
        number = _as_float(value)
        check.that(
            math.isfinite(number) and number <= _ROUNDING,
            f"{name} is {_shown(value)}; a finite log-prob of at most 0 is expected",
        )
        logprobs.append(min(number, 0.0))
    return tuple(logprobs)


def _read_spans(check: _Checker, meta: Mapping[str, Any], version: str, length: int) -> tuple[TextSpan, ...]:
    """Reads the weight versions over the output; a server that gives none used one."""
    found = meta.get("weight_versions")
    if not found:
        return (TextSpan(version, 0, length),) if length else ()
    spans, end = [], 0
    for span in check.sequence(found, "weight_versions"):
        span = check.mapping(span, "weight_versions[]")
        start, stop = (check.count(span.get(key), f"weight_versions[].{key}") for key in ("start", "end"))
        check.that(start == end and stop >= start, f"weight_versions {_shown(found)} leave a gap at token {end}")
        end = stop
        if stop > start:
            spans.append(TextSpan(str(span.get("version")), start, stop))
    check.that(end == length, f"weight_versions {_shown(found)} cover {end} of {length} tokens")
    return tuple(spans)
