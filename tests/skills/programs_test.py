import asyncio
import contextlib
import io

import pytest

from sage_jax.errors import SkillError
from sage_jax.skills.programs import (
    TRACE_QUERY,
    Origin,
    Program,
    ProgramLibrary,
    extract_programs,
    load_programs,
    named_uses,
    traced_uses,
)

CODE = """
import json, re as regex
from math import *
from collections import Counter

@staticmethod
def first(x):
    # keeps its comments
    return json.dumps(regex.sub("a", "b", x))

value = first("a")

class Box:
    def hidden(self):
        pass

def second(y):
    def inner():
        return Counter(y)
    return inner()
"""


class Shell:
    """An agent's shell as environments have it: names are kept from one piece of code to the next."""

    def __init__(self):
        self.names: dict = {}

    async def execute(self, code: str) -> tuple[bool, str]:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "shell", "exec"), self.names)
        except Exception as error:  # noqa: BLE001
            return False, f"{type(error).__name__}: {error}"
        return True, printed.getvalue()


def run(shell: Shell, code: str) -> str:
    ran, said = asyncio.run(shell.execute(code))
    assert ran, said
    return said


def load(shell: Shell, programs, credit="trace"):
    return asyncio.run(load_programs(programs, shell.execute, credit=credit))


def test_functions_of_the_top_level_are_taken_with_the_imports_they_need():
    first, second = extract_programs(CODE, Origin("t", "s", "q", "r", 7))
    assert first.source.startswith("@staticmethod\ndef first(x):\n    # keeps its comments")
    assert first.imports == ("import json, re as regex", "from math import *")
    assert second.imports == ("from math import *", "from collections import Counter")
    assert second.source.endswith("return inner()")
    assert first.origin.policy_version == 7


def test_the_later_of_two_functions_with_one_name_counts():
    (program,) = extract_programs("def f():\n    return 1\n\ndef f():\n    return 2")
    assert program.source == "def f():\n    return 2"


@pytest.mark.parametrize("code", ["def f(:", "\0", "(" * 10000, "", "x = 1"])
def test_code_without_functions_holds_none(code: str):
    assert extract_programs(code) == ()


def test_saving_overwrites_by_name_and_starts_a_new_history():
    library = ProgramLibrary().save(extract_programs("def f():\n    return 1\ndef g():\n    return 1"))
    library = library.record_use(["f"], won=True).record_use(["f", "g"], won=False)
    assert [(p.name, p.uses, p.successes) for p in library.programs] == [("f", 2, 1), ("g", 1, 0)]
    library = library.save(extract_programs("def f():\n    return 2"))
    assert [(p.name, p.uses) for p in library.programs] == [("f", 0), ("g", 1)]
    assert library.drop(["f"]).names == {"g"}


def test_a_library_goes_to_lines_and_back():
    library = ProgramLibrary(extract_programs(CODE, Origin("t", "s", "q", "r", 7, 1))).record_use(["first"], won=True)
    assert ProgramLibrary.from_lines(library.to_lines()) == library


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"name": "f"}', '{"name": "f", "source": "def g(): pass", "imports": [], "origin": {}}']
)
def test_a_damaged_line_is_named(line: str):
    good = ProgramLibrary(extract_programs("def f():\n    pass")).to_lines()
    with pytest.raises(SkillError, match="line 2"):
        ProgramLibrary.from_lines(good + line + "\n")


def test_a_name_is_there_once():
    with pytest.raises(SkillError, match="'f'|holds a name twice: f"):
        ProgramLibrary((Program("f", "def f(): pass"), Program("f", "def f(): pass")))


def test_functions_that_fail_on_loading_are_dropped_alone_and_named():
    good, bad, late = extract_programs(
        "def good():\n    return 1\ndef bad(x=missing):\n    pass\ndef late():\n    return good()"
    )
    shell = Shell()
    loading = load(shell, [good, bad, late])
    assert [program.name for program in loading.loaded] == ["good", "late"]
    assert list(loading.failed) == ["bad"]
    assert "missing" in loading.failed["bad"]
    assert run(shell, "print(late())") == "1\n"


def test_a_shell_that_cannot_count_is_an_error():
    async def refuse(code: str) -> tuple[bool, str]:
        return False, "no"

    with pytest.raises(SkillError, match="refused"):
        asyncio.run(load_programs(extract_programs("def f(): pass"), refuse, credit="trace"))
    with pytest.raises(SkillError, match="name, trace"):
        asyncio.run(load_programs((), refuse, credit="both"))


def test_credit_by_name_and_by_trace_differ_on_a_program_that_names_a_skill_without_calling_it():
    shell = Shell()
    load(shell, extract_programs("def f():\n    return 1\ndef g():\n    return 1/0\ndef h():\n    return 1"))
    code = "tool = f\nif False:\n    f()\ntry:\n    g()\nexcept ZeroDivisionError:\n    pass\nh()"
    run(shell, code)
    assert named_uses(code, ["f", "g", "h"]) == {"f", "g", "h"}
    assert traced_uses(run(shell, TRACE_QUERY), ["f", "g", "h"]) == {"h"}


def test_a_function_that_is_defined_anew_is_no_use():
    shell = Shell()
    load(shell, extract_programs("def f():\n    return 1"))
    code = "def f():\n    return 2\nf()"
    run(shell, code)
    assert named_uses(code, ["f"]) == frozenset()
    assert traced_uses(run(shell, TRACE_QUERY), ["f"]) == frozenset()


def test_a_text_that_only_mentions_a_name_is_no_use():
    assert named_uses("print('f')  # f", ["f"]) == frozenset()
    assert named_uses("x.f()", ["f"]) == frozenset()
    assert named_uses("f(", ["f"]) == frozenset()


@pytest.mark.parametrize(
    "said",
    ["", "f", "[1]", "{'f': 'x'}", "{'f': 0}", "__import__('os')", "{'f': 1}; 2", "(" * 10000, "{1: 1}", "{'g': 1}"],
)
def test_a_counter_that_is_none_counts_for_nothing(said: str):
    assert traced_uses(said, ["f"]) == frozenset()


def test_a_wrapped_function_keeps_its_name_and_text():
    shell = Shell()
    load(shell, extract_programs('def f(x, *, y=1):\n    "says"\n    return x + y'))
    assert run(shell, "print(f.__name__, f.__doc__, f(1, y=2))") == "f says 3\n"
