"""Reads the bodies of POST /generate as SGLang defines them, and refuses what this server cannot do by its name.

A field that SGLang knows and this server does not is fine as long as it has the value that changes nothing.
"""

from __future__ import annotations

import dataclasses
import reprlib
import secrets
import types
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sage_jax.errors import ConfigError, EngineError
from sage_jax.rollout.engine import SamplingParams, is_int

_TAKEN = {"rid", "text", "input_ids", "sampling_params", "return_logprob", "return_text_in_logprobs"}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "logprob_start_len": (None, -1),
    "top_logprobs_num": (None, 0),
    **dict.fromkeys(("return_hidden_states", "return_routed_experts", "return_sampling_mask"), (None, False)),
    **dict.fromkeys(("return_entropy", "return_prompt_token_ids"), (None, False)),
    **dict.fromkeys(("input_embeds", "image_data", "token_ids_logprob", "lora_path", "session_params"), (None,)),
    "custom_logit_processor": (None,),
}
_IGNORED = {"priority", "routing_key", "extra_key"}  # they change who is served first, and no answer

_SAMPLING_TAKEN = {
    "max_new_tokens": 128,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "stop_token_ids": None,
    "sampling_seed": None,
    "n": 1,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "no_stop_trim": False,
}
SAMPLING_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("stop", "stop_regex", "json_schema", "regex", "ebnf", "structural_tag"), (None, [], "")),
    **dict.fromkeys(("logit_bias", "custom_params", "beam_width", "watermark", "choice"), (None, {}, [])),
    **dict.fromkeys(("min_p", "frequency_penalty", "presence_penalty", "min_new_tokens"), (None, 0)),
    "repetition_penalty": (None, 1),
}
_SAMPLING_IGNORED = {"spaces_between_special_tokens", "stream_interval"}
_LARGEST = 1e300  # of temperature and top_p: JSON has numbers that no float holds
SAMPLING_NAMES = sorted({*_SAMPLING_TAKEN, *SAMPLING_NEUTRAL, *_SAMPLING_IGNORED})


class BadRequestError(EngineError):
    """A request that the client must change. `status` is the HTTP status, `code` a word for programs."""

    def __init__(self, message: str, status: int = 400, code: str = ""):
        super().__init__(message)
        self.status, self.code = status, code


@dataclasses.dataclass(frozen=True)
class Piece:
    """One sequence to generate.

    Attributes:
      rid: its name, unique among running ones.
      ids: prompt.
      sampling: how to sample.
      ignore_eos: whether the model's own end-of-text ids do not stop it.
      skip_special_tokens, trim_stop: how `text` is written.
      logprobs, logprob_text: whether the answer carries log-probs, and tokens' texts beside them.
    """

    rid: str
    ids: tuple[int, ...]
    sampling: SamplingParams
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    trim_stop: bool = True
    logprobs: bool = False
    logprob_text: bool = False


def read_generate(body: Any, encode: Callable[[str], Sequence[int]] | None) -> tuple[list[Piece], bool]:
    """Reads a body of POST /generate.

    Args:
      body: parsed JSON.
      encode: turns `text` into ids; None when the server has no tokenizer.

    Returns:
      The sequences to generate, and whether the answer is a list (a batch, or n > 1).

    Raises:
      BadRequestError: names the field and what would do.
    """
    body = read_object(body, _TAKEN | _IGNORED, _NEUTRAL)
    prompts, batched = _read_prompts(body, encode)
    params = body.get("sampling_params") or {}
    params = list(params) if isinstance(params, list) else [params] * len(prompts)
    rids = body.get("rid")
    if rids is None:
        rids = [uuid.uuid4().hex for _ in prompts]
    elif isinstance(rids, str):
        rids = [rids] if not batched else [f"{rids}_{number}" for number in range(len(prompts))]
    for name, values in (("sampling_params", params), ("rid", rids)):
        if not isinstance(values, list) or len(values) != len(prompts):
            raise BadRequestError(f"{name}: must be one, or as many as the {len(prompts)} prompts")
    if not all(isinstance(rid, str) and rid for rid in rids):
        raise BadRequestError("rid: must be a text, or a list of texts")
    flags = {
        "logprobs": read_flag(body, "return_logprob"),
        "logprob_text": read_flag(body, "return_text_in_logprobs"),
    }
    pieces = []
    for prompt, one, rid in zip(prompts, params, rids, strict=True):
        pieces += read_pieces(prompt, one, rid, **flags)
    return pieces, batched or len(pieces) > 1


def read_pieces(ids: tuple[int, ...], params: Any, rid: str, **flags: bool) -> list[Piece]:
    """Reads the sampling parameters of one prompt; returns n sequences, whose seeds follow each other.

    Raises:
      BadRequestError: names the parameter; an unknown one with all that are known.
    """
    if not isinstance(params, dict):
        raise BadRequestError(f"sampling_params: must be an object, not {params!r}")
    unknown = sorted(set(params) - set(SAMPLING_NAMES))
    if unknown:
        raise BadRequestError(
            f"sampling_params: unknown {', '.join(map(repr, unknown))}; known are {', '.join(SAMPLING_NAMES)}"
        )
    refuse_used(params, SAMPLING_NEUTRAL, "sampling_params.")
    given = {name: params[name] for name in _SAMPLING_TAKEN if params.get(name) is not None}
    taken = {**_SAMPLING_TAKEN, **given}
    count, top_k, seed = taken["n"], taken["top_k"], taken["sampling_seed"]
    if not is_int(count) or not 1 <= count <= 64:
        raise BadRequestError(f"sampling_params.n={count!r}: must be a whole number from 1 to 64")
    if not is_int(top_k) or (top_k < 1 and top_k != -1):
        raise BadRequestError(f"sampling_params.top_k={top_k!r}: must be -1 (off) or at least 1")
    if seed is None:
        seed = secrets.randbits(31)
    if not is_int(seed):
        raise BadRequestError(f"sampling_params.sampling_seed={seed!r}: must be a whole number")
    stops = taken["stop_token_ids"] or []
    if not isinstance(stops, list):
        raise BadRequestError(f"sampling_params.stop_token_ids={stops!r}: must be a list of token ids")
    try:
        sampling = SamplingParams(
            max_new_tokens=taken["max_new_tokens"],
            temperature=_read_number(taken, "temperature"),
            top_p=_read_number(taken, "top_p"),
            top_k=max(top_k, 0),
            stop_token_ids=tuple(stops),
            seed=seed % 2**62,
        )
    except ConfigError as error:
        raise BadRequestError(f"sampling_params: {error}") from error
    piece = Piece(
        rid=rid,
        ids=ids,
        sampling=sampling,
        ignore_eos=read_flag(taken, "ignore_eos"),
        skip_special_tokens=read_flag(taken, "skip_special_tokens"),
        trim_stop=not read_flag(taken, "no_stop_trim"),
        **flags,
    )
    if count == 1:
        return [piece]
    seeds = [dataclasses.replace(sampling, seed=sampling.seed + number) for number in range(count)]
    return [dataclasses.replace(piece, rid=f"{rid}_{n}", sampling=one) for n, one in enumerate(seeds)]


def _read_prompts(body: Mapping[str, Any], encode: Any) -> tuple[list[tuple[int, ...]], bool]:
    given = [name for name in ("text", "input_ids") if body.get(name) is not None]
    if len(given) != 1:
        raise BadRequestError("Either text or input_ids should be provided, and only one of them.")
    value = body[given[0]]
    if not value:
        raise BadRequestError(f"{given[0]} is empty: at least one token is needed")
    if given == ["text"]:
        if encode is None:
            raise BadRequestError("text: this server has no tokenizer; send input_ids")
        batched = isinstance(value, list)
        texts = value if batched else [value]
        if not all(isinstance(text, str) for text in texts):
            raise BadRequestError("text: must be a text or a list of texts")
        prompts = [encode(text) for text in texts]
    else:
        batched = isinstance(value, list) and isinstance(value[0], list)
        prompts = value if batched else [value]
    for prompt in prompts:
        if not isinstance(prompt, list | tuple) or not prompt or not all(is_int(token) for token in prompt):
            raise BadRequestError(f"{given[0]}: must give whole numbers, at least one for each prompt")
    return [tuple(prompt) for prompt in prompts], batched


def read_object(
    body: Any, taken: Collection[str], neutral: Mapping[str, tuple[Any, ...]] = types.MappingProxyType({})
) -> dict[str, Any]:
    """Returns a body that is an object of known fields.

    Args:
      body: parsed JSON.
      taken: fields that may have any value.
      neutral: fields that are known but not supported, with the values that change nothing.

    Raises:
      BadRequestError: names the field.
    """
    if not isinstance(body, dict):
        raise BadRequestError(f"the body must be a JSON object, not {type(body).__name__}")
    unknown = sorted(set(body) - set(taken) - set(neutral))
    if unknown:
        raise BadRequestError(f"unknown field {', '.join(map(repr, unknown))}")
    refuse_used(body, neutral, "")
    return body


def refuse_used(values: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], prefix: str) -> None:
    """Raises BadRequestError for a field that has another value than those that change nothing."""
    for name, harmless in neutral.items():
        if name in values and values[name] not in harmless:
            raise BadRequestError(f"{prefix}{name}={values[name]!r}: not supported by this server; leave it out")


def read_flag(values: Mapping[str, Any], name: str) -> bool:
    """Returns a field that is true, false (as when it is missing) or null. Raises BadRequestError."""
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"{name}={value!r}: must be true or false")
    return bool(value)


def _read_number(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise BadRequestError(f"sampling_params.{name}: must be a number, not {reprlib.repr(value)}")
    return float(value)
