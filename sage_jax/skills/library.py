"""The skill bank: an append-only log of edits and the skills that replaying it gives.

A bank is immutable: every edit returns a new bank that shares all skills with the old one, so that the two arms of a
probe (bank B and edited bank B') can live side by side for the price of a few pointers, and a bank can be handed to
any number of episodes without a copy. The log is the whole state: `SkillBank.replay(bank.log)` equals `bank`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sage_jax.errors import SkillError
from sage_jax.skills.skill import GENERAL, MISTAKE, NO_PROVENANCE, Provenance, Skill, normalise_space, normalise_words

SNAPSHOT_FORMAT = "sage_jax.skill_bank.1"
EDIT_KINDS = ("add", "update", "remove")
_ID_PREFIXES = {GENERAL: "gen", MISTAKE: "err"}
_FAMILY_PREFIX = "task"


@dataclasses.dataclass(frozen=True)
class BankEdit:
    """One entry of the log.

    Attributes:
      index: place in the log; the bank's version before this edit.
      kind: "add" (before is None), "update", or "remove" (after is None).
      before: the skill as it was.
      after: the skill as it became.
      provenance: task, policy version, step, utility and reason of the edit.
    """

    index: int
    kind: str
    before: Skill | None
    after: Skill | None
    provenance: Provenance


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SkillBank:
    """An immutable bank of skills. Make one with `SkillBank()`, `replay`, `restore` or `skills.load_bank`."""

    log: tuple[BankEdit, ...] = ()
    _skills: Mapping[str, Skill] = dataclasses.field(default_factory=dict)
    _used_ids: frozenset[str] = dataclasses.field(default=frozenset())

    @property
    def version(self) -> int:
        """Number of edits so far."""
        return len(self.log)

    @property
    def skills(self) -> tuple[Skill, ...]:
        """All skills, oldest first; an update keeps a skill's place."""
        return tuple(self._skills.values())

    def __repr__(self) -> str:
        return f"SkillBank(version={self.version}, skills=[{', '.join(self._skills)}])"

    def __len__(self) -> int:
        return len(self._skills)

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._skills.values())

    def __contains__(self, skill_id: object) -> bool:
        return skill_id in self._skills

    def __eq__(self, other: object) -> bool:
        return self.log == other.log if isinstance(other, SkillBank) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.version, self.fingerprint))

    def get(self, skill_id: str) -> Skill:
        """Returns the skill with this id. Raises: SkillError when there is none."""
        if skill_id not in self._skills:
            raise SkillError(
                f"skill_id {skill_id!r} is not in the bank; it has: {', '.join(self._skills) or 'nothing'}"
            )
        return self._skills[skill_id]

    def category(self, name: str) -> tuple[Skill, ...]:
        """Returns the skills of one category, oldest first."""
        return tuple(s for s in self if s.category == name)

    def find_duplicate(self, title: str, principle: str, *, ignore: str = "") -> Skill | None:
        """Returns the first skill whose title or principle says the same words, or None; `ignore` is an id to skip."""
        title, principle = normalise_words(title), normalise_words(principle)
        for skill in self:
            same = normalise_words(skill.title) == title or normalise_words(skill.principle) == principle
            if same and skill.id != ignore:
                return skill
        return None

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of everything an agent can read (ids, categories, words, order) and of nothing else."""
        words = [[s.id, s.category, s.title, s.principle, s.when_to_apply] for s in self]
        return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()

    # Edits. Each returns a new bank.

    def add(
        self,
        *,
        category: str,
        title: str,
        principle: str,
        when_to_apply: str = "",
        provenance: Provenance = NO_PROVENANCE,
        skill_id: str = "",
    ) -> SkillBank:
        """Adds a skill; without `skill_id` the next free one is given (`next_id`)."""
        skill_id = skill_id or self.next_id(category)
        skill = Skill(skill_id, category, title, principle, when_to_apply, provenance)
        return self._apply(BankEdit(self.version, "add", None, _clean(skill), provenance))

    def update(
        self, skill_id: str, *, title: str, principle: str, when_to_apply: str, provenance: Provenance = NO_PROVENANCE
    ) -> SkillBank:
        """Replaces the words of a skill. Raises: SkillError when `skill_id` is not in the bank."""
        before = self.get(skill_id)
        after = Skill(skill_id, before.category, title, principle, when_to_apply, provenance)
        return self._apply(BankEdit(self.version, "update", before, _clean(after), provenance))

    def remove(self, skill_id: str, *, provenance: Provenance = NO_PROVENANCE) -> SkillBank:
        """Removes a skill; its id is not given again. Raises: SkillError when `skill_id` is not in the bank."""
        return self._apply(BankEdit(self.version, "remove", self.get(skill_id), None, provenance))

    def next_id(self, category: str) -> str:
        """Returns the id `add` would give: all families share the prefix "task", so that ids stay short words."""
        return free_id(category, self._used_ids)

    def _apply(self, edit: BankEdit) -> SkillBank:
        _check_edit(edit, self)
        skills, used = dict(self._skills), self._used_ids
        if edit.after is not None:
            skills[edit.after.id] = edit.after
            used = used | {edit.after.id}
        elif edit.before is not None:
            del skills[edit.before.id]
        return SkillBank((*self.log, edit), skills, used)

    # State in and out.

    @classmethod
    def replay(cls, log: Iterable[BankEdit]) -> SkillBank:
        """Returns the bank that `log` leads to. Raises: SkillError at the first edit that does not fit."""
        bank = cls()
        for edit in log:
            bank = bank._apply(edit)
        return bank

    def snapshot(self) -> dict[str, Any]:
        """Returns the log as JSON-serialisable data, for a checkpoint."""
        return {"format": SNAPSHOT_FORMAT, "log": [dataclasses.asdict(edit) for edit in self.log]}

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> SkillBank:
        """Inverts `snapshot`. Raises: SkillError when the data is not a snapshot or its log does not replay."""
        if not isinstance(snapshot, Mapping) or snapshot.get("format") != SNAPSHOT_FORMAT:
            found = snapshot.get("format") if isinstance(snapshot, Mapping) else type(snapshot).__name__
            raise SkillError(f"skill bank snapshot: format is {found!r}, expected {SNAPSHOT_FORMAT!r}")
        try:
            log = [_edit_from_json(entry) for entry in snapshot["log"]]
        except (TypeError, KeyError, AttributeError) as error:
            raise SkillError(f"skill bank snapshot: broken log: {error!r}") from error
        return cls.replay(log)


def free_id(category: str, used_ids: Iterable[str]) -> str:
    """Returns the id after the highest used one of the category's prefix: "gen_4" after "gen_3" or "gen_003".

    The number has no leading zeros, so that a small word-level vocabulary knows it.
    """
    prefix = _ID_PREFIXES.get(category, _FAMILY_PREFIX) + "_"
    numbers = [i.removeprefix(prefix) for i in used_ids if i.startswith(prefix)]
    last = max((int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < 10), default=0)
    return f"{prefix}{last + 1}"


def _clean(skill: Skill) -> Skill:
    return dataclasses.replace(
        skill,
        title=normalise_space(skill.title),
        principle=normalise_space(skill.principle),
        when_to_apply=normalise_space(skill.when_to_apply),
    )


def _check_edit(edit: BankEdit, bank: SkillBank) -> None:
    """Raises SkillError unless `edit` is the next entry of the bank's log."""
    where = f"log[{edit.index}]"
    if edit.index != bank.version:
        raise SkillError(
            f"{where}: index is {edit.index}, expected {bank.version}: an entry is missing or out of order"
        )
    if edit.kind not in EDIT_KINDS:
        raise SkillError(f"{where}.kind is {edit.kind!r}, expected one of {', '.join(EDIT_KINDS)}")
    if (edit.before is None, edit.after is None) != (edit.kind == "add", edit.kind == "remove"):
        raise SkillError(f"{where}: 'before' and 'after' do not fit kind {edit.kind!r}")
    if edit.before is not None and bank._skills.get(edit.before.id) != edit.before:
        raise SkillError(f"{where}.before: skill {edit.before.id!r} does not read like this at version {bank.version}")
    if edit.after is None:
        return
    for name in ("id", "category", "title", "principle"):
        value = getattr(edit.after, name)
        if not isinstance(value, str) or not value:
            raise SkillError(f"{where}.after.{name} is {value!r}: a skill needs id, category, title and principle")
    if edit.kind == "add" and edit.after.id in bank._used_ids:
        raise SkillError(f"{where}.after.id {edit.after.id!r} was used before: ids are never reused")
    if edit.before is not None and edit.after.id != edit.before.id:
        raise SkillError(f"{where}.after.id {edit.after.id!r} is not the updated skill {edit.before.id!r}")


def _skill_from_json(data: Mapping[str, Any] | None) -> Skill | None:
    return None if data is None else Skill(**{**data, "provenance": Provenance(**data["provenance"])})


def _edit_from_json(data: Mapping[str, Any]) -> BankEdit:
    skills = {name: _skill_from_json(data[name]) for name in ("before", "after")}
    return BankEdit(**{**data, **skills, "provenance": Provenance(**data["provenance"])})
