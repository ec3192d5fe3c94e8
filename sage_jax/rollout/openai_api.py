"""The part of OpenAI's chat API that this server speaks: messages in, one or more choices out, not streamed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sage_jax.rollout.openai_requests import ChatCall, read_chat
from sage_jax.rollout.service import EngineService
from sage_jax.rollout.tool_calls import split_tool_calls


def list_models(service: EngineService) -> dict[str, Any]:
    """Returns the answer of GET /v1/models."""
    model = {"id": service.name, "object": "model", "created": 0, "owned_by": "sage_jax", "root": service.name}
    return {"object": "list", "data": [{**model, "max_model_len": service.limit_length}]}


async def complete_chat(service: EngineService, body: Any) -> dict[str, Any]:
    """Returns the answer of POST /v1/chat/completions.

    Raises:
      BadRequestError: names the field.
    """
    call = read_chat(service, body)
    answers = await service.generate_all(call.pieces)
    metas = [answer["meta_info"] for answer in answers]
    prompt, completion = metas[0]["prompt_tokens"], sum(meta["completion_tokens"] for meta in metas)
    return {
        "id": f"chatcmpl-{call.pieces[0].rid}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": service.name,
        "choices": [_choice(call, number, answer) for number, answer in enumerate(answers)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(meta["cached_tokens"] for meta in metas)},
        },
        "metadata": {"weight_version": metas[0]["weight_version"], "weight_versions": metas[0]["weight_versions"]},
    }


def _choice(call: ChatCall, number: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    meta = answer["meta_info"]
    text, reason = answer["text"], meta["finish_reason"]["type"]
    for stop in call.stops:
        if stop in text:  # Deviation: cut afterwards; tokens behind it were sampled, and are counted
            text, reason = text[: text.index(stop)], "stop"
    message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": None}
    if call.tools:
        rest, found = split_tool_calls(text)
        if found:
            message |= {"content": rest or None, "tool_calls": found if call.several_calls else found[:1]}
            reason = "tool_calls" if reason == "stop" else reason
    choice: dict[str, Any] = {"index": number, "message": message, "finish_reason": reason, "logprobs": None}
    if call.logprobs:
        content = [
            {"token": piece_text, "logprob": logprob, "bytes": list(piece_text.encode()), "top_logprobs": []}
            for logprob, _, piece_text in meta["output_token_logprobs"]
        ]
        choice["logprobs"] = {"content": content}
    if call.token_ids:
        ids = {"prompt_token_ids": list(call.pieces[number].ids), "response_token_ids": answer["output_ids"]}
        choice |= ids
    if call.meta_info:
        choice["meta_info"] = meta
    return choice
