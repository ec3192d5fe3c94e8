"""The part of OpenAI's chat API that this server speaks: messages in, one or more choices out, not streamed."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from typing import Any

import jinja2

from sage_jax.rollout.http_requests import BadRequestError, Piece, read_pieces
from sage_jax.rollout.service import EngineService

_DIRECT = ("temperature", "top_p", "top_k", "n", "stop_token_ids", "ignore_eos", "skip_special_tokens")
_KNOWN = {
    *_DIRECT,
    *("model", "messages", "max_tokens", "max_completion_tokens", "seed", "logprobs", "stream", "tools", "stop"),
    *("input_ids", "return_token_ids", "return_meta_info", "user", "rid"),
}


def list_models(service: EngineService) -> dict[str, Any]:
    """Returns the answer of GET /v1/models."""
    model = {"id": service.name, "object": "model", "created": 0, "owned_by": "sage_jax", "root": service.name}
    return {"object": "list", "data": [{**model, "max_model_len": service.limit_length}]}


async def complete_chat(service: EngineService, body: Any) -> dict[str, Any]:
    """Returns the answer of POST /v1/chat/completions.

    Raises:
      BadRequestError: names the field.
    """
    pieces = read_chat(service, body)
    answers = await asyncio.gather(*(service.generate(piece) for piece in pieces))
    metas = [answer["meta_info"] for answer in answers]
    prompt, completion = metas[0]["prompt_tokens"], sum(meta["completion_tokens"] for meta in metas)
    return {
        "id": f"chatcmpl-{pieces[0].rid}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": service.name,
        "choices": [_choice(number, answer, pieces[number], body) for number, answer in enumerate(answers)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(meta["cached_tokens"] for meta in metas)},
        },
        "metadata": {"weight_version": metas[0]["weight_version"], "weight_versions": metas[0]["weight_versions"]},
    }


def read_chat(service: EngineService, body: Any) -> list[Piece]:
    """Reads a chat request as sequences to generate. Raises BadRequestError naming the field."""
    if not isinstance(body, dict):
        raise BadRequestError(f"the body must be a JSON object, not {type(body).__name__}")
    unknown = sorted(set(body) - _KNOWN)
    if unknown:
        raise BadRequestError(f"unknown field {', '.join(map(repr, unknown))}")
    if body.get("stream"):
        raise BadRequestError("stream=true: not supported by this server; leave it out")
    if service.tokenizer is None:
        raise BadRequestError("this server has no tokenizer, which chat needs; use /generate with input_ids")
    ids = _given_ids(body["input_ids"]) if body.get("input_ids") else _prompt(service.tokenizer, body)
    params = {name: body[name] for name in _DIRECT if body.get(name) is not None}
    budget = body.get("max_completion_tokens") or body.get("max_tokens")
    params["max_new_tokens"] = budget or max(1, service.limit_length - len(ids))
    params["sampling_seed"] = body.get("seed")
    return read_pieces(ids, params, body.get("rid") or uuid.uuid4().hex, logprobs=True, logprob_text=True)


def _given_ids(ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise BadRequestError("input_ids: must be a list of whole numbers")
    return tuple(ids)


def _prompt(tokenizer: Any, body: Mapping[str, Any]) -> tuple[int, ...]:
    messages = body.get("messages")
    messages = messages if isinstance(messages, list) else []
    whole = [message for message in messages if isinstance(message, dict) and {"role", "content"} <= set(message)]
    if not messages or len(whole) < len(messages):
        raise BadRequestError("messages: must be a list of at least one object with role and content")
    if not tokenizer.chat_template:
        raise BadRequestError("messages: the model has no chat template; send input_ids, or use /generate")
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=body.get("tools"), add_generation_prompt=True, tokenize=False
        )
    except jinja2.TemplateError as error:  # templates refuse roles that their model does not know
        raise BadRequestError(f"messages: the model's chat template refuses them: {error}") from error
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _choice(number: int, answer: Mapping[str, Any], piece: Piece, body: Mapping[str, Any]) -> dict[str, Any]:
    meta = answer["meta_info"]
    text, reason = answer["text"], meta["finish_reason"]["type"]
    stops = body.get("stop") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop in text:  # Deviation: cut afterwards; tokens behind it were sampled, and are counted
            text, reason = text[: text.index(stop)], "stop"
    choice: dict[str, Any] = {
        "index": number,
        "message": {"role": "assistant", "content": text, "tool_calls": None},
        "finish_reason": reason,
        "logprobs": None,
    }
    if body.get("logprobs"):
        content = [
            {"token": piece_text, "logprob": logprob, "bytes": list(piece_text.encode()), "top_logprobs": []}
            for logprob, _, piece_text in meta["output_token_logprobs"]
        ]
        choice["logprobs"] = {"content": content}
    if body.get("return_token_ids"):
        choice |= {"prompt_token_ids": list(piece.ids), "response_token_ids": answer["output_ids"]}
    if body.get("return_meta_info"):
        choice["meta_info"] = meta
    return choice
