"""Tool calls in the form of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` within a text.

What is not exactly that stays text, so that nothing the model wrote is lost.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

_OPEN = "<tool_call>"
_START, _END = re.compile(r"\s*(?=\{)"), re.compile(r"\s*(</tool_call>|$)")  # the end tag may be cut off as a stop
_JSON = json.JSONDecoder()


def split_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Returns what stands beside the calls, and the calls as OpenAI's `tool_calls`, in the model's order."""
    calls: list[dict[str, Any]] = []
    kept, place = "", 0
    while (start := text.find(_OPEN, place)) >= 0:
        inner = start + len(_OPEN)
        call, end = _read_call(text, inner)
        if call is None:
            kept, place = kept + text[place:inner], inner
        else:
            calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": call})
            kept, place = kept + text[place:start], end
    kept += text[place:]
    return (kept.strip() if calls else kept), calls


def _read_call(text: str, place: int) -> tuple[dict[str, str] | None, int]:
    """Returns the call whose JSON begins at a place, and where its block ends; None if it is no call."""
    if (start := _START.match(text, place)) is None:
        return None, place
    try:
        value, place = _JSON.raw_decode(text, start.end())
        arguments = json.dumps(value.get("arguments", {}), ensure_ascii=False, allow_nan=False)
        f"{value.get('name')}{arguments}".encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return None, place
    end = _END.match(text, place)
    name = value.get("name")
    if end is None or not isinstance(name, str) or not name or not arguments.startswith("{"):
        return None, place
    return {"name": name, "arguments": arguments}, end.end()
