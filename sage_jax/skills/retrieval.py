"""Which skills an episode is shown, and their text in a prompt. Called once, when the episode starts.

`template` is what SkillRL and SkillMaster released: the first general skills, all of the task's category, some common
mistakes. `bm25` ranks each of the three by the words it shares with the task; it stands where the papers use an
embedding model. `condition` shows the skills of any category whose when_to_apply shares a word with
the task, and no others. `all` shows every skill of a small bank, whatever its category.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from sage_jax.errors import ConfigError
from sage_jax.skills.library import SkillBank
from sage_jax.skills.skill import GENERAL, MISTAKE, Skill

STYLES = ("full", "short")
# In a bank of a few dozen short texts these are rare enough to outweigh the words that matter.
_STOP_WORDS = frozenset(
    ["a", "an", "and", "at", "for", "from", "in", "is", "it", "of", "on", "or", "some", "the", "to"]
)


@dataclasses.dataclass(frozen=True)
class RetrievalConfig:
    """How skills are chosen. The defaults are SkillMaster's on ALFWorld (WebShop: top_k 6).

    Attributes:
      method: a key of `RETRIEVERS`.
      top_k: most general skills shown; with "bm25" also the most skills of the task's category.
      category_limit: most skills of the task's category, None for all ("template") or `top_k` ("bm25").
      mistakes: most common mistakes shown.
    """

    method: str = "template"
    top_k: int = 13
    category_limit: int | None = None
    mistakes: int = 5

    def __post_init__(self) -> None:
        if self.method not in RETRIEVERS:
            raise ConfigError(f"retrieval method is {self.method!r}, expected one of {', '.join(RETRIEVERS)}")
        for name in ("top_k", "category_limit", "mistakes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"retrieval {name} is {value}, expected 0 or more")


def retrieve(bank: SkillBank, *, task_text: str, category: str, config: RetrievalConfig) -> tuple[Skill, ...]:
    """Returns the skills to show: general ones, the category's, mistakes; the same arguments give the same answer."""
    return RETRIEVERS[config.method](bank, task_text, category, config)


def _none(bank: SkillBank, task_text: str, category: str, config: RetrievalConfig) -> tuple[Skill, ...]:
    return ()


def _template(bank: SkillBank, task_text: str, category: str, config: RetrievalConfig) -> tuple[Skill, ...]:
    return (
        *bank.category(GENERAL)[: config.top_k],
        *bank.category(category)[: config.category_limit],
        *bank.category(MISTAKE)[: config.mistakes],
    )


def _bm25(bank: SkillBank, task_text: str, category: str, config: RetrievalConfig) -> tuple[Skill, ...]:
    limit = config.top_k if config.category_limit is None else config.category_limit
    return (
        *rank_by_words(bank.category(GENERAL), task_text)[: config.top_k],
        *rank_by_words(bank.category(category), task_text)[:limit],
        *rank_by_words(bank.category(MISTAKE), task_text)[: config.mistakes],
    )


def _condition(bank: SkillBank, task_text: str, category: str, config: RetrievalConfig) -> tuple[Skill, ...]:
    words = set(_words(task_text))
    return tuple(skill for skill in bank if words & set(_words(skill.when_to_apply)))[: config.top_k]


def _all(bank: SkillBank, task_text: str, category: str, config: RetrievalConfig) -> tuple[Skill, ...]:
    return bank.skills[: config.top_k]


RETRIEVERS: dict[str, Callable[[SkillBank, str, str, RetrievalConfig], tuple[Skill, ...]]] = {
    "none": _none,
    "template": _template,
    "bm25": _bm25,
    "condition": _condition,
    "all": _all,
}


def rank_by_words(skills: Sequence[Skill], query: str) -> tuple[Skill, ...]:
    """Returns `skills` by falling BM25 score of their words against `query`; ties keep the bank's order."""
    documents = [_words(f"{s.title} {s.principle} {s.when_to_apply}") for s in skills]
    words = _words(query)
    if not words or not any(documents):
        return tuple(skills)
    # Imported late: bm25s loads jax where it is installed, and this package must start without it.
    import bm25s

    index = bm25s.BM25()
    index.index(documents, show_progress=False)
    scores = index.get_scores(words)
    # Rounded so that scores that are equal but for the order of a float sum stay ties.
    order = sorted(range(len(skills)), key=lambda i: (-round(float(scores[i]), 5), i))
    return tuple(skills[i] for i in order)


def _words(text: str) -> list[str]:
    return [w for w in re.findall(r"[^\W_]+", text.casefold()) if w not in _STOP_WORDS]


def render_skills(skills: Sequence[Skill], *, style: str = "full", ids: bool = False) -> str:
    """Returns the text of retrieved skills for a prompt; "" when there are none.

    Args:
      skills: in the order to show them.
      style: "full" has a heading for each kind and lines `- title: principle (when to apply)`; "short" has one line
        `<id> <principle>` a skill, for small contexts.
      ids: put `[id]` before each title ("short" always has ids); review prompts need them.

    Raises:
      ConfigError: unknown style.
    """
    if style not in STYLES:
        raise ConfigError(f"skill style is {style!r}, expected one of {', '.join(STYLES)}")
    if style == "short":
        return "\n".join(f"{s.id} {s.principle}" for s in skills)
    lines: list[str] = []
    heading = ""
    for skill in skills:
        kind = {GENERAL: "General skills:", MISTAKE: "Common mistakes:"}.get(skill.category, "Skills for this task:")
        if kind != heading:
            lines.append(kind)
            heading = kind
        name = f"[{skill.id}] {skill.title}" if ids else skill.title
        when = f" ({skill.when_to_apply})" if skill.when_to_apply else ""
        lines.append(f"- {name}: {skill.principle}{when}")
    return "\n".join(lines)
