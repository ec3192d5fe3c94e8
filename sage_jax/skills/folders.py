"""Skills as folders with a SKILL.md each: front matter with name and description, then a body in markdown.

    skills/
      find-on-site/SKILL.md
      ...
      history.jsonl          what each edit changed, in order

A library is a value: edits return a new one, so a run's copy shares nothing with another's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from sage_jax.errors import SkillError

SKILL_FILE, HISTORY_FILE = "SKILL.md", "history.jsonl"
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)(.*)\Z", re.DOTALL)
MOST_NAME, MOST_DESCRIPTION, MOST_BODY = 64, 1024, 20_000


@dataclasses.dataclass(frozen=True)
class SkillFile:
    """One SKILL.md. Raises SkillError naming the field.

    Attributes:
      name: lower-case words joined by hyphens; the folder's name.
      description: when to use it, one paragraph.
      body: the procedure, markdown.
    """

    name: str
    description: str
    body: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > MOST_NAME:
            raise SkillError(
                f"skill name {self.name[:80]!r}: use lower-case letters and digits joined by hyphens, "
                f"at most {MOST_NAME} characters"
            )
        for field, most in {"description": MOST_DESCRIPTION, "body": MOST_BODY}.items():
            text = getattr(self, field)
            if not text.strip() or len(text) > most:
                raise SkillError(f"skill {self.name}: {field} must have 1 to {most} characters, found {len(text)}")

    @property
    def text(self) -> str:
        """The file's content; `parse_skill` reads it back."""
        front = yaml.safe_dump(
            {"name": self.name, "description": self.description}, sort_keys=False, allow_unicode=True, width=10**6
        )
        return f"---\n{front}---\n\n{self.body.strip()}\n"

    @property
    def fingerprint(self) -> str:
        """A hash of the content."""
        return hashlib.blake2b(self.text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def parse_skill(text: str) -> SkillFile:
    """Reads a SKILL.md; other keys of the front matter are ignored.

    Raises:
      SkillError: no front matter, not YAML, a field is missing or does not fit.
    """
    match = _FRONT.match(text.lstrip("\ufeff\r\n \t"))
    if match is None:
        raise SkillError("a skill begins with front matter: ---, name and description, ---")
    try:
        front = yaml.safe_load(match.group(1))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SkillError(f"the front matter is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(front, dict):
        raise SkillError("the front matter must hold name: and description:")
    for field in ("name", "description"):
        if not isinstance(front.get(field), str):
            raise SkillError(f"the front matter has no text {field}:")
    return SkillFile(front["name"].strip(), " ".join(front["description"].split()), match.group(2).strip())


@dataclasses.dataclass(frozen=True)
class SkillFolder:
    """The skills of one run, by name, and how they came to be.

    Attributes:
      skills: by name, in the order they were added.
      history: one entry an edit: name, fingerprints before and after, and what the editor's caller notes.
    """

    skills: Mapping[str, SkillFile] = dataclasses.field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()

    def put(self, skill: SkillFile, **note: Any) -> SkillFolder:
        """Returns a folder with a skill added, or replaced under its name."""
        before = self.skills.get(skill.name)
        entry = {"name": skill.name, "before": before.fingerprint if before else None, "after": skill.fingerprint}
        return SkillFolder({**self.skills, skill.name: skill}, (*self.history, {**entry, **note}))

    def __iter__(self) -> Iterator[SkillFile]:
        return iter(self.skills.values())

    def __len__(self) -> int:
        return len(self.skills)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the skills and their history into a folder that holds nothing else."""
        folder = pathlib.Path(folder)
        for skill in self:
            (folder / skill.name).mkdir(parents=True, exist_ok=True)
            (folder / skill.name / SKILL_FILE).write_text(skill.text, encoding="utf-8", errors="replace")
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(dict(entry), ensure_ascii=False) + "\n" for entry in self.history]
        (folder / HISTORY_FILE).write_text("".join(lines), encoding="utf-8")


def load_folder(folder: str | os.PathLike[str]) -> SkillFolder:
    """Reads a folder of skills; what is read is a copy that later changes of the files do not reach.

    Raises:
      SkillError: no such folder, a file that is no skill, or a name that is not its folder's.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise SkillError(f"{folder}: no such folder of skills")
    skills = {}
    for path in sorted(folder.glob(f"*/{SKILL_FILE}")):
        try:
            skill = parse_skill(path.read_text(encoding="utf-8"))
        except (SkillError, UnicodeDecodeError) as error:
            raise SkillError(f"{path}: {error}") from error
        if skill.name != path.parent.name:
            raise SkillError(f"{path}: is named {skill.name!r} but lies in {path.parent.name!r}")
        skills[skill.name] = skill
    return SkillFolder(skills, tuple(_history(folder / HISTORY_FILE)))


def _history(path: pathlib.Path) -> Sequence[Mapping[str, Any]]:
    if not path.is_file():
        return ()
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise SkillError(f"{path}: a line is not JSON: {error}") from error
