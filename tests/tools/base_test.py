"""Arguments are checked, results cut, and no call raises."""

import pytest

from sage_jax.tools import Tool, Toolbox, ToolFailure, ToolOutcome, ToolSpec


def rows(name, count=3):
    if name == "gone":
        raise ToolFailure(ToolOutcome.NOT_FOUND, "no file gone")
    return f"{name} " * count


@pytest.fixture
def toolbox():
    spec = ToolSpec("rows", "Rows.", {"name": ("string", "file"), "count": ("integer", "rows")}, frozenset({"count"}))
    page = ToolSpec("page", "Page.", {"number": ("integer", "page")})
    return Toolbox([Tool(spec, rows), Tool(page, lambda number: str(number + 1))], max_chars=40)


@pytest.mark.parametrize(
    ("name", "arguments", "outcome", "text"),
    [
        ("rows", {"name": "a"}, "ok", "a a a "),
        ("rows", "a", "ok", "a a a "),
        ("rows", {"name": "a", "count": 1}, "ok", "a "),
        ("rows", {"name": "gone"}, "not_found", "no file gone"),
        ("page", "4", "ok", "5"),
        ("page", "four", "bad_arguments", 'page: number must be a integer, found "four"'),
        ("page", {"number": True}, "bad_arguments", "page: number must be a integer, found true"),
        ("rows", {}, "bad_arguments", "rows takes name, count; found none"),
        ("rows", {"name": 3}, "bad_arguments", "rows: name must be a string, found 3"),
        ("rows", {"name": "a", "x": 1}, "bad_arguments", "rows takes name, count; found name, x"),
        ("rows", ["a"], "bad_arguments", "rows: arguments must be a JSON object"),
        ("rows", None, "bad_arguments", "rows: arguments must be a JSON object"),
        ("rm", {"path": "/"}, "unknown_tool", "no tool 'rm'; there are rows, page"),
    ],
)
def test_calls(toolbox, name, arguments, outcome, text):
    result = toolbox.call(name, arguments)
    assert (result.outcome.value, result.text) == (outcome, text)


def test_long_results_are_cut_with_a_note(toolbox):
    assert toolbox.call("rows", {"name": "a", "count": 30}).text == "a " * 20 + "\n[cut: 20 more characters]"


def test_specs_in_openai_format(toolbox):
    function = toolbox.specs[0].to_json()["function"]
    assert function["name"] == "rows"
    assert function["parameters"]["required"] == ["name"]
    assert function["parameters"]["properties"]["count"] == {"type": "integer", "description": "rows"}
