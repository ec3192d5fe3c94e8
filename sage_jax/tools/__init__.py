"""Typed and bounded tools of agents: pages, files, search, programs."""

from sage_jax.tools.base import Tool, Toolbox, ToolFailure, ToolOutcome, ToolResult, ToolSpec
from sage_jax.tools.browse import Browser
from sage_jax.tools.calls import ANSWER, ParsedCall, parse_action, parse_react
from sage_jax.tools.fetch import FetchOptions, PageClient
from sage_jax.tools.pages import Page, read_page

__all__ = [
    "ANSWER",
    "Browser",
    "FetchOptions",
    "Page",
    "PageClient",
    "ParsedCall",
    "Tool",
    "ToolFailure",
    "ToolOutcome",
    "ToolResult",
    "ToolSpec",
    "Toolbox",
    "parse_action",
    "parse_react",
    "read_page",
]
