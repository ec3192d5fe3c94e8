"""A skill: one piece of advice in words, and where it came from. The unit that banks keep and prompts show."""

from __future__ import annotations

import dataclasses

GENERAL = "general"
MISTAKE = "mistake"


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where an edit of the bank came from.

    Attributes:
      task_id: the task whose episode was reviewed; "" for skills read from a file.
      policy_version: version of the weights that wrote the edit.
      step: training step of the edit.
      utility: counterfactual utility of the edit, None when it was not measured.
      reason: the evidence or reason the author gave.
    """

    task_id: str = ""
    policy_version: int = 0
    step: int = 0
    utility: float | None = None
    reason: str = ""


NO_PROVENANCE = Provenance()


@dataclasses.dataclass(frozen=True)
class Skill:
    """One skill.

    Attributes:
      id: unique in its bank and never reused there, "gen_1".
      category: `GENERAL`, `MISTAKE` or a task family.
      title: a few words. Of a mistake: what went wrong.
      principle: what to do. Of a mistake: how to avoid it.
      when_to_apply: the situation, may be empty. Of a mistake: why it happens.
      provenance: of the edit that gave the skill its present words.
    """

    id: str
    category: str
    title: str
    principle: str
    when_to_apply: str = ""
    provenance: Provenance = NO_PROVENANCE


def normalise_space(text: str) -> str:
    """Returns `text` on one line with single spaces and without lone surrogates (no tokenizer takes those)."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def normalise_words(text: str) -> str:
    """Returns the letters and digits of `text` in lower case: equal results mean "says the same"."""
    words = "".join(c if c.isalnum() else " " for c in text.casefold())
    return " ".join(words.split())
