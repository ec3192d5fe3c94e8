"""Skill banks as JSON files in the layout that SkillRL published.

    {"general_skills": [skill, ...],
     "task_specific_skills": {category: [skill, ...]},
     "common_mistakes": [mistake, ...]}

A skill has skill_id, title, principle, when_to_apply; a mistake has mistake_id (or skill_id), description,
why_it_happens, how_to_avoid, or the fields of a skill. The file keeps words only: a bank with its history goes into
checkpoints by `SkillBank.snapshot`.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from sage_jax.errors import SkillError
from sage_jax.skills.library import SkillBank, free_id
from sage_jax.skills.skill import GENERAL, MISTAKE, Provenance, Skill

SECTIONS = ("general_skills", "task_specific_skills", "common_mistakes")
# Field of a skill -> accepted names in the file, best first; "" as last name makes the field optional.
_SKILL_FIELDS = {
    "skill_id": ("skill_id", "id", ""),
    "title": ("title",),
    "principle": ("principle",),
    "when_to_apply": ("when_to_apply", ""),
}
_MISTAKE_FIELDS = {
    "skill_id": ("mistake_id", "skill_id", "id", ""),
    "title": ("description", "title"),
    "principle": ("how_to_avoid", "principle"),
    "when_to_apply": ("why_it_happens", "when_to_apply", ""),
}


def load_bank(path: str | os.PathLike[str], *, rename: Mapping[str, str] | None = None) -> SkillBank:
    """Reads a bank from a SkillRL-format file; skills without an id get one.

    Args:
      path: the JSON file.
      rename: category in the file -> task family here, for files with another naming of the families.

    Raises:
      SkillError: the file is missing, is not such JSON, or a field is wrong; the message names file and field.
    """
    path = pathlib.Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SkillError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SkillError(f"{path}: is not JSON: {error}") from error
    if not isinstance(data, dict) or not set(data) & set(SECTIONS):
        raise SkillError(f"{path}: expected an object with at least one of {', '.join(SECTIONS)}")
    entries = list(_entries(data, path, rename or {}))
    provenance = Provenance(reason=f"loaded from {path.name}")
    bank, given = SkillBank(), {fields["skill_id"] for fields, _ in entries}
    for fields, where in entries:
        # Also ids that come later in the file are taken.
        skill_id = fields["skill_id"] or free_id(fields["category"], given | {s.id for s in bank})
        try:
            bank = bank.add(**{**fields, "skill_id": skill_id}, provenance=provenance)
        except SkillError as error:
            raise SkillError(f"{path}: {where}: {error}") from error
    return bank


def save_bank(bank: SkillBank, path: str | os.PathLike[str]) -> None:
    """Writes the words of a bank in SkillRL format (`load_bank` reads them back with the same fingerprint)."""
    families = dict.fromkeys(s.category for s in bank if s.category not in (GENERAL, MISTAKE))
    data = {
        "general_skills": [_to_json(s) for s in bank.category(GENERAL)],
        "task_specific_skills": {name: [_to_json(s) for s in bank.category(name)] for name in families},
        "common_mistakes": [_to_json(s) for s in bank.category(MISTAKE)],
    }
    pathlib.Path(path).write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _to_json(skill: Skill) -> dict[str, str]:
    names = _MISTAKE_FIELDS if skill.category == MISTAKE else _SKILL_FIELDS
    values = {"skill_id": skill.id, **{name: getattr(skill, name) for name in ("title", "principle", "when_to_apply")}}
    return {names[field][0]: value for field, value in values.items()}


def _entries(
    data: Mapping[str, Any], path: pathlib.Path, rename: Mapping[str, str]
) -> Iterator[tuple[dict[str, str], str]]:
    """Yields (arguments of `SkillBank.add`, place in the file) in the file's order."""
    for skill, where in _listed(data.get("general_skills", []), path, "general_skills"):
        yield {"category": GENERAL, **_read(skill, _SKILL_FIELDS, path, where)}, where
    families = data.get("task_specific_skills", {})
    if not isinstance(families, dict):
        raise SkillError(f"{path}: task_specific_skills must be an object of lists, found {type(families).__name__}")
    for name, skills in families.items():
        if name in (GENERAL, MISTAKE, ""):
            raise SkillError(f"{path}: task_specific_skills.{name}: {name!r} cannot be the name of a task family")
        for skill, where in _listed(skills, path, f"task_specific_skills.{name}"):
            yield {"category": rename.get(name, name), **_read(skill, _SKILL_FIELDS, path, where)}, where
    for skill, where in _listed(data.get("common_mistakes", []), path, "common_mistakes"):
        yield {"category": MISTAKE, **_read(skill, _MISTAKE_FIELDS, path, where)}, where


def _listed(value: Any, path: pathlib.Path, where: str) -> Iterator[tuple[Any, str]]:
    if not isinstance(value, list):
        raise SkillError(f"{path}: {where} must be a list, found {type(value).__name__}")
    for i, item in enumerate(value):
        yield item, f"{where}[{i}]"


def _read(item: Any, names: Mapping[str, tuple[str, ...]], path: pathlib.Path, where: str) -> dict[str, str]:
    """Returns the fields of one skill under our names."""
    if not isinstance(item, dict):
        raise SkillError(f"{path}: {where} must be an object, found {type(item).__name__}")
    fields = {}
    for field, accepted in names.items():
        name = next((n for n in accepted if n in item), accepted[-1])
        value = item.get(name, "" if name == "" else None)
        if not isinstance(value, str) or (name and accepted[-1] and not value.strip()):
            raise SkillError(f"{path}: {where}.{name} must be a text that is not empty, found {value!r}")
        fields[field] = value.strip()
    return fields
