"""Skills as Python functions: taken from an agent's code, kept in a library, loaded again, and credited when used.

What is kept is text. It is parsed here and never run here: an environment's sandboxed shell runs it.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from sage_jax.errors import SkillError

CREDITS = ("name", "trace")
COUNTS = "skill_calls"  # the name in the agent's shell that counts completed calls
_TRACED = "traced_skill"
# Defined once in the shell. A call counts when it returns, so that one that raises earns nothing.
TRACE_PRELUDE = f"""
{COUNTS} = {{}}
def {_TRACED}(name, function):
    def call(*args, **kwargs):
        value = function(*args, **kwargs)
        {COUNTS}[name] = {COUNTS}.get(name, 0) + 1
        return value
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return call
""".strip()
TRACE_QUERY = f"print({COUNTS})"


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a program came from.

    Attributes:
      task_id: the task whose episode wrote it.
      scenario: that task's scenario.
      query: that task's instruction.
      rollout: the rollout that wrote it.
      policy_version: version of the weights that wrote it.
      position: place of the task in its chain.
    """

    task_id: str = ""
    scenario: str = ""
    query: str = ""
    rollout: str = ""
    policy_version: int = 0
    position: int = 0


@dataclasses.dataclass(frozen=True)
class Program:
    """One function and its history.

    Attributes:
      name: of the function; unique in a library.
      source: the function's own text, decorators and comments included.
      imports: the import lines it needs.
      origin: of the text it has now.
      uses: episodes that used it.
      successes: of those, the ones that were won.
    """

    name: str
    source: str
    imports: tuple[str, ...] = ()
    origin: Origin = Origin()
    uses: int = 0
    successes: int = 0

    @property
    def code(self) -> str:
        """What defines it in a fresh shell."""
        return "\n".join([*self.imports, self.source])


def extract_programs(code: str, origin: Origin = Origin()) -> tuple[Program, ...]:  # noqa: B008  (frozen)
    """Returns the functions that code defines at top level, in order; of two with one name, the later.

    Code that does not parse holds none.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = code.splitlines()
    found: dict[str, Program] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            source = "\n".join(lines[first - 1 : node.end_lineno])
            needed = tuple(ast.unparse(line) for line in imports if _binds(line) & _names(node))
            found.pop(node.name, None)
            found[node.name] = Program(node.name, source, needed, origin)
    return tuple(found.values())


@dataclasses.dataclass(frozen=True)
class ProgramLibrary:
    """Programs by name, immutable: every change returns a new library. Empty at the start of a rollout's chain."""

    programs: tuple[Program, ...] = ()

    def __post_init__(self) -> None:
        names = [program.name for program in self.programs]
        if len(set(names)) != len(names):
            raise SkillError(
                f"a program library holds a name twice: {sorted(n for n in names if names.count(n) > 1)[0]}"
            )

    def __len__(self) -> int:
        return len(self.programs)

    @property
    def names(self) -> frozenset[str]:
        """The names of all programs."""
        return frozenset(program.name for program in self.programs)

    def save(self, programs: Iterable[Program]) -> ProgramLibrary:
        """Adds programs; one of a name that is there takes its place, with a history of its own."""
        kept = {program.name: program for program in self.programs}
        for program in programs:
            kept[program.name] = program
        return ProgramLibrary(tuple(kept.values()))

    def drop(self, names: Iterable[str]) -> ProgramLibrary:
        """Removes programs."""
        gone = set(names)
        return ProgramLibrary(tuple(program for program in self.programs if program.name not in gone))

    def record_use(self, names: Iterable[str], *, won: bool) -> ProgramLibrary:
        """Counts an episode that used the named programs."""
        used = set(names)
        return ProgramLibrary(
            tuple(
                dataclasses.replace(program, uses=program.uses + 1, successes=program.successes + won)
                if program.name in used
                else program
                for program in self.programs
            )
        )

    def to_lines(self) -> str:
        """Returns the library as JSON lines, one program a line."""
        return "".join(json.dumps(dataclasses.asdict(program), sort_keys=True) + "\n" for program in self.programs)

    @classmethod
    def from_lines(cls, text: str) -> ProgramLibrary:
        """Reads `to_lines`' text.

        Raises:
          SkillError: a line is no program; the message has its number.
        """
        programs = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                entry = json.loads(line)
                entry["origin"] = Origin(**entry["origin"])
                entry["imports"] = tuple(entry["imports"])
                program = Program(**entry)
            except (ValueError, TypeError, KeyError) as error:
                raise SkillError(f"line {number} of a program library is no program: {error}") from error
            if [found.name for found in extract_programs(program.source)] != [program.name]:
                raise SkillError(f"line {number} of a program library does not define {program.name!r} alone")
            programs.append(program)
        return cls(tuple(programs))


@dataclasses.dataclass(frozen=True)
class Loading:
    """What came of loading programs into a shell.

    Attributes:
      loaded: those that the shell now has: what the prompt shows.
      failed: name -> how the shell answered, of those that were left out.
    """

    loaded: tuple[Program, ...]
    failed: dict[str, str]


async def load_programs(
    programs: Sequence[Program], execute: Callable[[str], Awaitable[tuple[bool, str]]], *, credit: str
) -> Loading:
    """Defines programs in an agent's shell, one by one: one that fails is left out alone, by name.

    # Deviation: the released code runs all in one block and drops the whole block when any of it fails.

    Args:
      programs: to load.
      execute: runs code in the shell; returns whether it ran, and what it said.
      credit: "trace" wraps each function so that completed calls are counted; "name" leaves them as they are.
    """
    if credit not in CREDITS:
        raise SkillError(f"credit is {credit!r}, expected one of {', '.join(CREDITS)}")
    loaded, failed = [], {}
    if credit == "trace" and programs:
        ran, said = await execute(TRACE_PRELUDE)
        if not ran:
            raise SkillError(f"the shell refused to count calls: {said[:200]}")
    for program in programs:
        code = program.code
        if credit == "trace":
            code += f"\n{program.name} = {_TRACED}({program.name!r}, {program.name})"
        ran, said = await execute(code)
        if ran:
            loaded.append(program)
        else:
            failed[program.name] = said[:500]
    return Loading(tuple(loaded), failed)


def named_uses(code: str, names: Iterable[str]) -> frozenset[str]:
    """Returns the stored functions that code names without defining them anew: credit as published."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    mentioned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(names) & (mentioned - defined)


def traced_uses(said: str, names: Iterable[str]) -> frozenset[str]:
    """Returns the stored functions that were called and returned, from what the shell printed for `TRACE_QUERY`.

    The shell is the agent's, so this is a measure and no proof: code can write the counter. Anything but a plain
    dictionary of counts counts for nothing.
    """
    try:
        counts: Any = ast.literal_eval(said.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    if not isinstance(counts, dict):
        return frozenset()
    counted = {key for key, value in counts.items() if isinstance(key, str) and isinstance(value, int) and value > 0}
    return frozenset(names) & counted


def _binds(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Returns the names that an import line brings; a star may bring any, and so is always kept."""
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _names(node: ast.AST) -> set[str]:
    return {"*"} | {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
