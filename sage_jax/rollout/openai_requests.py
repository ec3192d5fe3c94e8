"""Reads the bodies of POST /v1/chat/completions, and refuses what this server cannot do by its name.

A field of OpenAI's that this server does not have is fine as long as it is null or has the value that changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from sage_jax.rollout.engine import is_int
from sage_jax.rollout.http_requests import (
    SAMPLING_NEUTRAL,
    BadRequestError,
    Piece,
    read_flag,
    read_object,
    read_pieces,
)
from sage_jax.rollout.service import EngineService

_SAMPLING = ("temperature", "top_p", "top_k", "n", "stop_token_ids", "ignore_eos", "skip_special_tokens")
_TAKEN = {
    *_SAMPLING,
    *("model", "messages", "max_tokens", "max_completion_tokens", "seed", "stop", "tools", "parallel_tool_calls"),
    *("logprobs", "input_ids", "return_token_ids", "return_meta_info", "rid"),
    *("user", "metadata", "safety_identifier", "prompt_cache_key"),  # who asks, and why: no answer depends on it
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{name: values for name, values in SAMPLING_NEUTRAL.items() if name != "stop"},
    **dict.fromkeys(("stream", "store", "no_stop_trim", "continue_final_message"), (None, False)),
    **dict.fromkeys(("top_logprobs", "min_tokens"), (None, 0)),
    **dict.fromkeys(("audio", "function_call", "functions", "moderation", "prediction", "reasoning_effort"), (None,)),
    **dict.fromkeys(("stream_options", "verbosity", "web_search_options", "lora_path", "session_params"), (None,)),
    **dict.fromkeys(("prompt_cache_options", "prompt_cache_retention", "chat_template_kwargs"), (None, {})),
    "modalities": (None, ["text"]),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "tool_choice": (None, "auto", "none"),
}
_ANY_MODEL = "default"  # what SGLang's clients call the one model of a server


@dataclasses.dataclass(frozen=True)
class ChatCall:
    """A chat request that was read.

    Attributes:
      pieces: the sequences to generate, one for each choice.
      stops: texts before which an answer is cut.
      tools: whether tool calls are looked for, and whether a choice may hold several.
      logprobs, token_ids, meta_info: what an answer carries beside its text.
    """

    pieces: Sequence[Piece]
    stops: Sequence[str]
    tools: bool
    several_calls: bool
    logprobs: bool
    token_ids: bool
    meta_info: bool


def read_chat(service: EngineService, body: Any) -> ChatCall:
    """Reads a chat request for a service's tokenizer and model. Raises BadRequestError naming the field."""
    body = read_object(body, _TAKEN, _NEUTRAL)
    body = {name: value for name, value in body.items() if value is not None}
    _check_model(service, body.get("model", _ANY_MODEL))
    if service.tokenizer is None:
        raise BadRequestError("this server has no tokenizer, which chat needs; use /generate with input_ids")
    tools = _read_tools(body)
    ids = _given_ids(body["input_ids"]) if body.get("input_ids") else _prompt(service.tokenizer, body, tools)
    params = {name: body[name] for name in _SAMPLING if name in body}
    params["max_new_tokens"] = _read_budget(body, max(1, service.limit_length - len(ids)))
    params["sampling_seed"] = body.get("seed")
    rid = body.get("rid", uuid.uuid4().hex)
    if not isinstance(rid, str) or not rid:
        raise BadRequestError(f"rid={rid!r}: must be a text")
    several = body.get("parallel_tool_calls") is None or read_flag(body, "parallel_tool_calls")
    flags = [read_flag(body, name) for name in ("logprobs", "return_token_ids", "return_meta_info")]
    pieces = read_pieces(ids, params, rid, logprobs=True, logprob_text=True)
    return ChatCall(pieces, _read_stops(body), bool(tools), several, *flags)


def _check_model(service: EngineService, model: Any) -> None:
    if not isinstance(model, str):
        raise BadRequestError(f"model={model!r}: must be a text")
    if model != _ANY_MODEL and not service.answers_to(model):
        raise BadRequestError(
            f"model={model!r}: this server has {service.name!r} alone", status=404, code="model_not_found"
        )


def _read_budget(body: Mapping[str, Any], room: int) -> int:
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    budget = body.get(name, room)
    if not is_int(budget) or budget < 1:
        raise BadRequestError(f"{name}={budget!r}: must be a whole number of at least 1")
    return budget


def _read_stops(body: Mapping[str, Any]) -> list[str]:
    stops = body.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequestError(f"stop={body['stop']!r}: must be a text or a list of texts, and none of them empty")
    return stops


def _read_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the tools that are offered."""
    tools = body.get("tools", [])
    if not isinstance(tools, list) or not all(_is_named(tool) for tool in tools):
        raise BadRequestError("tools: must be a list of objects with type 'function' and a function that has a name")
    return [] if body.get("tool_choice") == "none" else tools


def _is_named(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _given_ids(ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, list) or not all(is_int(token) for token in ids):
        raise BadRequestError("input_ids: must be a list of whole numbers")
    return tuple(ids)


def _prompt(tokenizer: Any, body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages: must be a list of at least one object with role and content")
    plain = [_plain_message(message, f"messages[{number}]") for number, message in enumerate(messages)]
    if not tokenizer.chat_template:
        raise BadRequestError("messages: the model has no chat template; send input_ids, or use /generate")
    text = _render(tokenizer, plain, tools)
    if tools and text == _render(tokenizer, plain, ()):
        raise BadRequestError("tools: the model's chat template does not show them; tell of them in a message")
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _render(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    try:
        return tokenizer.apply_chat_template(
            messages, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
        )
    except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:  # of what it does not know
        raise BadRequestError(f"messages: the model's chat template refuses them: {error}") from error


def _plain_message(message: Any, name: str) -> dict[str, Any]:
    """Returns a message as templates take it: its content one text, the arguments of its tool calls objects."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequestError(f"{name}: must be an object with role and content")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_named(call) for call in calls):
        raise BadRequestError(f"{name}.tool_calls: must be a list of objects with a function that has a name")
    content = message.get("content")
    if content is None and calls:
        content = ""
    plain = {**message, "content": _join(content, f"{name}.content")}
    plain.pop("tool_calls", None)
    return {**plain, "tool_calls": [_with_object(call) for call in calls]} if calls else plain


def _join(content: Any, name: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadRequestError(f"{name}: must be a text or a list of text parts")
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRequestError(f"{name}[{number}]: must be a part of type 'text'; this server reads no others")
    return "\n".join(part["text"] for part in content)


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a call with arguments that are JSON text as the object that the text tells."""
    function = dict(call["function"])
    try:
        parsed = json.loads(function.get("arguments") or "{}")
        json.dumps(parsed, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (TypeError, ValueError, RecursionError):  # an object already, or not what a call should be: as it is
        return {**call, "function": function}
    return {**call, "function": {**function, "arguments": parsed}}
