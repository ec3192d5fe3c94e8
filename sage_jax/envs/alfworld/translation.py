"""From a PDDL problem to the planner's grounded form (SAS), the slow part of loading a game, done once and kept.

The translator is fast-downward's own. This file runs it without its side effects, reduces its result to plain data, and
stores that as gzipped JSON under a hash of the problem, so that the next worker loads the game in milliseconds.
"""

from __future__ import annotations

import dataclasses
import gc
import gzip
import hashlib
import json
import os
import pathlib
import sys
import zlib

import fast_downward

from sage_jax.errors import DataError

FORMAT = 1  # raise when the fields of Translation change: older files are then not found and made again

# Besides its one error of its own, the translator fails with whatever a wrong problem makes its code do.
_TRANSLATOR_ERRORS = (
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    SystemExit,
    TypeError,
    ValueError,
)


@dataclasses.dataclass(frozen=True)
class Translation:
    """A grounded game as plain data.

    Attributes:
      sas: the planning task in fast-downward's SAS format.
      objects: (name, type name) of every object.
      types: (name, names of its supertypes) in the translator's order.
      actions: action name -> ((parameter, type name), ...).
      facts: (predicate, argument, ...) true at the start.
      fluents: predicates that some action or axiom can change.
    """

    sas: str
    objects: tuple[tuple[str, str], ...]
    types: tuple[tuple[str, tuple[str, ...]], ...]
    actions: dict[str, tuple[tuple[str, str], ...]]
    facts: tuple[tuple[str, ...], ...]
    fluents: tuple[str, ...]


def translation_key(domain: str, problem: str) -> str:
    """Returns the name under which the translation of a problem is stored."""
    text = f"{FORMAT}\0{domain}\0{problem}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def translate(domain: str, problem: str) -> Translation:
    """Grounds a problem with fast-downward's translator, keeping every operator and fact as the stock engine does.

    Raises:
      DataError: the problem cannot be translated (bad syntax, or a goal that no state satisfies).
    """
    argv, collecting = sys.argv, gc.isenabled()
    gc.disable()  # the translator makes hundreds of thousands of small objects and no cycles: a quarter of its time
    try:
        task, sas = fast_downward.pddl2sas(domain, problem)
    except (_parse_error(), *_TRANSLATOR_ERRORS) as error:
        raise DataError(f"the PDDL problem cannot be grounded: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = argv  # the translator overwrites it
        if collecting:
            gc.enable()
    facts = (_initial_fact(item) for item in task.init)
    changed = {e.literal.predicate for a in task.actions for e in a.effects} | {a.name for a in task.axioms}
    return Translation(
        sas=sas,
        objects=tuple((item.name, item.type_name) for item in task.objects),
        types=tuple((item.name, tuple(item.supertype_names)) for item in task.types),
        actions={a.name: tuple((p.name.strip("?"), p.type_name) for p in a.parameters) for a in task.actions},
        facts=tuple(fact for fact in facts if fact),
        fluents=tuple(sorted(changed)),
    )


def _parse_error() -> type[Exception]:
    """Returns the translator's own error, whose package may be imported only where pddl2sas has set sys.argv."""
    from fast_downward.translate.pddl_parser import lisp_parser

    return lisp_parser.ParseError


def _initial_fact(item) -> tuple[str, ...] | None:
    """Returns an entry of the translator's initial state as a fact, None for equality, costs and distances."""
    if hasattr(item, "predicate"):
        return None if item.predicate == "=" else (item.predicate, *item.args)
    value = str(item.expression.value)
    if item.fluent.symbol == "total-cost" or value.isdigit():
        return None
    return (value, *item.fluent.args)


def load_translation(domain: str, problem: str, folder: pathlib.Path | None) -> Translation:
    """Returns the stored translation of a problem, making and storing it when there is none (or a damaged one)."""
    if folder is None:
        return translate(domain, problem)
    key = translation_key(domain, problem)
    translation = _read(_path(folder, key))
    if translation is None:
        translation = translate(domain, problem)
        store_translation(folder, key, translation)
    return translation


def _path(folder: pathlib.Path, key: str) -> pathlib.Path:
    return folder / key[:2] / f"{key}.json.gz"


def _read(path: pathlib.Path) -> Translation | None:
    """Returns a stored translation; None when it is absent or damaged, since it can always be made again."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        return Translation(
            sas=data["sas"],
            objects=tuple(map(tuple, data["objects"])),
            types=tuple((name, tuple(supers)) for name, supers in data["types"]),
            actions={name: tuple(map(tuple, parameters)) for name, parameters in data["actions"].items()},
            facts=tuple(map(tuple, data["facts"])),
            fluents=tuple(data["fluents"]),
        )
    except (OSError, EOFError, ValueError, KeyError, zlib.error):
        return None


def store_translation(folder: pathlib.Path, key: str, translation: Translation) -> None:
    """Stores a translation under its key so that a reader sees all of it or nothing."""
    path = _path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = gzip.compress(json.dumps(dataclasses.asdict(translation)).encode(), compresslevel=3, mtime=0)
    partial = path.with_suffix(f".{os.getpid()}.partial")  # a worker is one thread: its process id is enough
    partial.write_bytes(data)
    os.replace(partial, path)
