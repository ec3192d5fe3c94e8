"""Typed, bounded tools: a name and JSON arguments in, a text and an outcome out. Nothing a model asks for raises.

A tool is a function of its arguments that returns a text, or raises `ToolFailure` with the outcome that fits. The
toolbox checks arguments against the tool's parameters, and cuts what comes back to a size a context can hold.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_PAGE_HINT = "\n[cut: {left} more characters]"


class ToolOutcome(enum.StrEnum):
    """How a tool call ended. All are observations of the agent; none is an error of the run."""

    OK = "ok"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"  # not an object, a missing or unknown name, a wrong type
    NOT_FOUND = "not_found"  # no such button, page, file, sheet
    REFUSED = "refused"  # outside the allowed domain or root, or robots.txt says no
    TOO_LARGE = "too_large"
    REDIRECTS = "redirects"  # more redirects than allowed, or a loop
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"  # no connection, or a server error
    UNREADABLE = "unreadable"  # a broken file, or a kind that has no reader
    FAILED = "failed"  # the program that was run failed


class ToolFailure(Exception):  # noqa: N818  (an outcome, not an error)
    """Ends a tool call with an outcome other than OK. The message is shown to the agent."""

    def __init__(self, outcome: ToolOutcome, message: str):
        """Takes the outcome and what the agent is told."""
        super().__init__(message)
        self.outcome = outcome


@dataclasses.dataclass(frozen=True)
class ToolResult:
    """What the agent sees of a call, and how it ended."""

    text: str
    outcome: ToolOutcome = ToolOutcome.OK


@dataclasses.dataclass(frozen=True)
class ToolSpec:
    """A tool as a model is told of it.

    Attributes:
      name: a Python identifier.
      description: one or two sentences.
      parameters: name -> (JSON type, description). The first one may be given bare, as `name[text]`.
      optional: those of `parameters` that may be left out.
    """

    name: str
    description: str
    parameters: Mapping[str, tuple[str, str]]
    optional: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Returns the tool in the format of OpenAI's `tools`."""
        properties = {name: {"type": kind, "description": text} for name, (kind, text) in self.parameters.items()}
        required = [name for name in self.parameters if name not in self.optional]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def problem(self, arguments: Mapping[str, Any]) -> str:
        """Returns what is wrong with arguments; empty when nothing is."""
        unknown = [name for name in arguments if name not in self.parameters]
        missing = [name for name in self.parameters if name not in arguments and name not in self.optional]
        if unknown or missing:
            wanted = ", ".join(self.parameters) or "no arguments"
            found = ", ".join(map(str, arguments)) or "none"
            return f"{self.name} takes {wanted}; found {found}"
        for name, value in arguments.items():
            kind = self.parameters[name][0]
            if not isinstance(value, _TYPES[kind]) or (kind in ("integer", "number") and isinstance(value, bool)):
                return f"{self.name}: {name} must be a {kind}, found {json.dumps(value, default=str)[:80]}"
        return ""


@dataclasses.dataclass(frozen=True)
class Tool:
    """A tool and the function that runs it."""

    spec: ToolSpec
    run: Callable[..., str]


class Toolbox:
    """The tools of one episode."""

    def __init__(self, tools: Sequence[Tool], *, max_chars: int = 8000):
        """Takes the tools; results longer than `max_chars` are cut."""
        self._tools = {tool.spec.name: tool for tool in tools}
        self._max_chars = max_chars

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What models are told of the tools."""
        return tuple(tool.spec for tool in self._tools.values())

    def call(self, name: str, arguments: Any) -> ToolResult:
        """Runs a tool; every fault of the call is an outcome."""
        tool = self._tools.get(name)
        if tool is None:
            return ToolResult(f"no tool {name[:80]!r}; there are {', '.join(self._tools)}", ToolOutcome.UNKNOWN_TOOL)
        if isinstance(arguments, str):  # the bare form
            first = next(iter(tool.spec.parameters), None)
            arguments = {} if first is None else {first: arguments}
            kind = tool.spec.parameters[first][0] if first else "string"
            if kind == "integer" and arguments[first].strip().lstrip("-").isdigit():
                arguments[first] = int(arguments[first])
        if not isinstance(arguments, dict):
            return ToolResult(f"{name}: arguments must be a JSON object", ToolOutcome.BAD_ARGUMENTS)
        problem = tool.spec.problem(arguments)
        if problem:
            return ToolResult(problem, ToolOutcome.BAD_ARGUMENTS)
        try:
            return ToolResult(cut(tool.run(**arguments), self._max_chars))
        except ToolFailure as failure:
            return ToolResult(cut(str(failure), self._max_chars), failure.outcome)


def cut(text: str, limit: int) -> str:
    """Returns the text, or its beginning and a note of how much is left."""
    return text if len(text) <= limit else text[:limit] + _PAGE_HINT.format(left=len(text) - limit)
