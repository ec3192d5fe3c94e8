"""Tool calls as text: `name[argument]`, ReAct's two lines, or a final answer. Never raises; oddities are typed.

visit_page[Courses]                       the bare form: the tool's first parameter
read_file[{"name": "a.csv", "rows": 5}]   several parameters as JSON
Action: visit_page                        ReAct
Action Input: {"button": "Courses"}
FINAL ANSWER: 17
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

ANSWER = "answer"
_BARE = re.compile(r"\s*([A-Za-z_]\w*)\s*\[(.*)\]\s*", re.DOTALL)
_REACT = re.compile(r"^\s*Action\s*:\s*(.+?)\s*$\s*^\s*Action\s+Input\s*:\s*(.*)", re.MULTILINE | re.DOTALL | re.I)
_ACTION_ONLY = re.compile(r"^\s*Action\s*:\s*(.+?)\s*$", re.MULTILINE | re.I)
_FINAL = re.compile(r"FINAL\s+ANSWER\s*:\s*(.*)", re.DOTALL | re.I)
_NEXT = re.compile(r"^\s*(?:Observation|Thought|Action)\s*:", re.MULTILINE | re.I)


@dataclasses.dataclass(frozen=True)
class ParsedCall:
    """A call, a final answer (`name == "answer"`), or why the text is neither.

    Attributes:
      name: of the tool; empty when the text holds no call.
      arguments: JSON arguments, or the bare text of the first parameter.
      problem: what is wrong; empty for a call.
    """

    name: str
    arguments: Any = None
    problem: str = ""

    @property
    def text(self) -> str:
        """The call in the one form that environments take."""
        bare = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)
        return f"{self.name}[{bare}]"


def parse_action(text: str) -> ParsedCall:
    """Reads `name[argument]`; JSON objects become arguments, anything else stays the bare text."""
    match = _BARE.fullmatch(text)
    if match is None:
        return ParsedCall("", problem="expected name[argument], for example visit_page[Home]")
    name, inside = match.group(1), match.group(2).strip()
    if inside.startswith("{") and name != ANSWER:
        try:
            return ParsedCall(name, json.loads(inside))
        except (ValueError, RecursionError):
            return ParsedCall(name, inside)
    return ParsedCall(name, inside)


def parse_react(text: str) -> ParsedCall:
    """Reads a model's free text: a final answer, ReAct's action, or the bare form on the last line that has one."""
    action = _REACT.search(text)
    final = _FINAL.search(text)
    if final and (action is None or final.start() < action.start()):
        return ParsedCall(ANSWER, final.group(1).strip())
    if action:
        name = action.group(1).strip().strip("`*")
        inside = _NEXT.split(action.group(2), maxsplit=1)[0].strip().strip("`").strip()
        if inside.startswith("{"):
            try:
                arguments, _ = json.JSONDecoder().raw_decode(inside)
            except (ValueError, RecursionError):
                return ParsedCall("", problem=f"Action Input of {name[:60]} is not JSON: {inside[:120]}")
            return ParsedCall(name, arguments)
        return ParsedCall(name, inside)
    only = _ACTION_ONLY.search(text)
    for line in [only.group(1)] if only else reversed(text.splitlines()):
        call = parse_action(line)
        if not call.problem:
            return call
    return ParsedCall("", problem="no tool call and no FINAL ANSWER in the text")
