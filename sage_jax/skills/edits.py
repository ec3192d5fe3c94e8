"""The three tools by which an agent edits the bank after an episode, from model text to a new bank.

Text -> `parse_tool_call` -> `ToolCall` -> `apply_edit` -> `EditOutcome`. What the model wrote is never an exception:
every fault is an outcome that shaping can price (SkillMaster, arXiv 2605.08693).
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from typing import Any

from sage_jax.skills.library import SkillBank
from sage_jax.skills.skill import GENERAL, MISTAKE, NO_PROVENANCE, Provenance, Skill, normalise_space, normalise_words

# Tool -> its arguments, all of them required.
TOOLS: dict[str, tuple[str, ...]] = {
    "propose_skill": ("category", "title", "principle", "when_to_apply", "evidence"),
    "update_skill": ("skill_id", "title", "principle", "when_to_apply", "reason"),
    "keep_skill": ("reason",),
}
MAX_CALL_CHARS = 4000  # of the JSON: far above any honest call inside 768 tokens
MAX_ARGUMENT_CHARS = {"title": 160, "principle": 1000, "when_to_apply": 600, "evidence": 1000, "reason": 1000}
# First words of environment actions (ALFWorld, WebShop): a tool of such a name means that the model went on acting.
ENV_VERBS = frozenset(
    ("go", "take", "move", "put", "open", "close", "use", "heat", "cool", "clean", "slice", "toggle", "examine")
    + ("look", "inventory", "help", "search", "click")
)
_OPEN = re.compile(r"<\s*tool_call\s*>", re.IGNORECASE)
_CLOSE = re.compile(r"<\s*/\s*tool_call\s*>", re.IGNORECASE)
# Words that belong to prompts; a skill that carried them would speak as the chat template or as the answer format.
_MARKUP = re.compile(r"<\||\|>|<\s*/?\s*(think|action|tool_call)\s*>", re.IGNORECASE)
# After `normalise_words`: what a copied form says where an answer should stand.
_PLACEHOLDER = re.compile(
    r"((your|the|a|short|skill|new) )?"
    r"(title|principle|reason|evidence|category|when to apply|skill id|text|string)( here)?"
    r"|example|placeholder|todo|tbd|n a|none|null|value|xxx"
)


class EditKind(enum.StrEnum):
    """What became of a review turn's tool call."""

    ADDED = "added"
    DUPLICATE = "duplicate"
    UPDATED = "updated"
    NOT_FOUND = "not_found"
    KEPT = "kept"
    PARSE_ERROR = "parse_error"
    INVALID_ARGUMENTS = "invalid_arguments"
    UNKNOWN_TOOL = "unknown_tool"

    @property
    def changes_bank(self) -> bool:
        """Whether there is an edit whose utility can be measured."""
        return self in (EditKind.ADDED, EditKind.UPDATED)


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A well-formed call: a name and an object of arguments, neither checked against `TOOLS` yet."""

    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class CallFailure:
    """Text that holds no well-formed call, and why."""

    reason: str


@dataclasses.dataclass(frozen=True)
class EditOutcome:
    """What a call did.

    Attributes:
      kind: one of the eight outcomes.
      bank: the edited bank when `kind.changes_bank`, else the bank that was given.
      skill_id: the skill added, updated or found to be there already; "" without one.
      edit_key: equal for edits that turn equal banks into equal banks, so that these can share their probes; ""
        when the bank is unchanged.
      reason: what was wrong, "" when nothing was.
      env_action: the tool's name is an environment action.
      placeholder: an argument is text of a form nobody filled in.
    """

    kind: EditKind
    bank: SkillBank = dataclasses.field(repr=False)
    skill_id: str = ""
    edit_key: str = ""
    reason: str = ""
    env_action: bool = False
    placeholder: bool = False


def parse_tool_call(text: str) -> ToolCall | CallFailure:
    """Reads the one JSON call `{"name": ..., "arguments": {...}}` between <tool_call> tags; never raises.

    Names of tools and keys lose all white space and strings the outer one, because a word-level tokenizer decodes
    `{ " name " : " keep_skill " }`.
    """
    opened, closed = list(_OPEN.finditer(text)), list(_CLOSE.finditer(text))
    if len(opened) != 1 or len(closed) != 1 or closed[0].start() < opened[0].end():
        return CallFailure(f"expected one <tool_call>...</tool_call>, found {len(opened)} opened, {len(closed)} closed")
    body = text[opened[0].end() : closed[0].start()]
    if len(body) > MAX_CALL_CHARS:
        return CallFailure(f"call of {len(body)} characters, at most {MAX_CALL_CHARS}")
    try:
        call = json.loads(body, object_pairs_hook=_pairs, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return CallFailure(f"not JSON: {error}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or set(call) - {"name", "arguments"}:
        return CallFailure("expected an object with the keys name and arguments")
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return CallFailure("arguments must be an object")
    name = _squeeze(call["name"])
    return ToolCall(name if name in TOOLS else normalise_space(call["name"]), arguments)


def apply_edit(
    bank: SkillBank, call: ToolCall | CallFailure, *, task_category: str, provenance: Provenance = NO_PROVENANCE
) -> EditOutcome:
    """Applies a call to `bank` and tells what happened; `bank` itself never changes.

    Args:
      bank: the bank the call is about. The same call may be applied to a later bank too, once its utility is known.
      call: what `parse_tool_call` returned.
      task_category: family of the reviewed task; a skill is proposed for it or for "general".
      provenance: of the edit; its reason is replaced by the call's evidence or reason.
    """
    if isinstance(call, CallFailure):
        return EditOutcome(EditKind.PARSE_ERROR, bank, reason=call.reason)
    if call.name not in TOOLS:
        verb = re.split(r"[^a-z]", call.name.casefold(), maxsplit=1)[0]
        reason = f"tool {call.name!r}, expected one of {', '.join(TOOLS)}"
        return EditOutcome(EditKind.UNKNOWN_TOOL, bank, reason=reason, env_action=verb in ENV_VERBS)
    arguments, fault = _check_arguments(call)
    if fault:
        return EditOutcome(EditKind.INVALID_ARGUMENTS, bank, reason=fault)
    hollow = [name for name, value in arguments.items() if _is_placeholder(value)]
    if hollow:
        reason = f"{hollow[0]} is a placeholder: {arguments[hollow[0]]!r}"
        return EditOutcome(EditKind.INVALID_ARGUMENTS, bank, reason=reason, placeholder=True)
    provenance = dataclasses.replace(provenance, reason=arguments.get("evidence", arguments.get("reason", "")))
    if call.name == "propose_skill":
        return _propose(bank, arguments, task_category, provenance)
    if call.name == "update_skill":
        return _update(bank, arguments, task_category, provenance)
    return EditOutcome(EditKind.KEPT, bank)


def find_skill(bank: SkillBank, reference: str, task_category: str) -> Skill | None:
    """Returns the skill an agent means by an id or an exact title, among those its prompt can have shown."""
    shown = [s for s in bank if s.category in (GENERAL, MISTAKE, task_category)]
    wanted = _squeeze(reference).casefold()
    for skill in shown:
        if skill.id.casefold() == wanted:
            return skill
    return next((s for s in shown if normalise_words(s.title) == normalise_words(reference)), None)


def _propose(bank: SkillBank, arguments: Mapping[str, str], task_category: str, provenance: Provenance) -> EditOutcome:
    named = _squeeze(arguments["category"]).casefold()
    category = next((c for c in (GENERAL, task_category) if c.casefold() == named), None)
    if category is None:
        reason = f"category {named!r}, expected {GENERAL!r} or {task_category!r}"
        return EditOutcome(EditKind.INVALID_ARGUMENTS, bank, reason=reason)
    twin = bank.find_duplicate(arguments["title"], arguments["principle"])
    if twin is not None:
        return EditOutcome(EditKind.DUPLICATE, bank, twin.id, reason=f"{twin.id} has this title or principle")
    words = {name: arguments[name] for name in ("title", "principle", "when_to_apply")}
    skill_id = bank.next_id(category)
    edited = bank.add(category=category, skill_id=skill_id, **words, provenance=provenance)
    return EditOutcome(EditKind.ADDED, edited, skill_id, _edit_key(bank, edited))


def _update(bank: SkillBank, arguments: Mapping[str, str], task_category: str, provenance: Provenance) -> EditOutcome:
    skill = find_skill(bank, arguments["skill_id"], task_category)
    if skill is None:
        return EditOutcome(EditKind.NOT_FOUND, bank, reason=f"no skill {arguments['skill_id']!r} for this task")
    words = {name: arguments[name] for name in ("title", "principle", "when_to_apply")}
    # Unspecified: an update that repeats another skill, or changes nothing, counts as a duplicate here.
    twin = bank.find_duplicate(words["title"], words["principle"], ignore=skill.id)
    if twin is None and all(getattr(skill, name) == value for name, value in words.items()):
        twin = skill
    if twin is not None:
        return EditOutcome(EditKind.DUPLICATE, bank, twin.id, reason=f"{twin.id} has this title or principle")
    edited = bank.update(skill.id, **words, provenance=provenance)
    return EditOutcome(EditKind.UPDATED, edited, skill.id, _edit_key(bank, edited))


def _check_arguments(call: ToolCall) -> tuple[dict[str, str], str]:
    """Returns (the arguments on one line each, what is wrong with them or "")."""
    expected = TOOLS[call.name]
    wrong = [*(set(expected) - set(call.arguments)), *sorted(set(call.arguments) - set(expected))]
    if wrong:
        return {}, f"{call.name} takes {', '.join(expected)}; missing or unknown: {', '.join(sorted(wrong))}"
    arguments: dict[str, str] = {}
    for name in expected:
        value = call.arguments[name]
        if not isinstance(value, str) or not normalise_space(value):
            return {}, f"{name} must be a text that is not empty"
        arguments[name] = normalise_space(value)
        if len(arguments[name]) > MAX_ARGUMENT_CHARS.get(name, 160):
            return {}, f"{name} has {len(arguments[name])} characters, at most {MAX_ARGUMENT_CHARS.get(name, 160)}"
        if _MARKUP.search(arguments[name]):
            return {}, f"{name} holds markup of prompts"
    return arguments, ""


def _is_placeholder(value: str) -> bool:
    """True for "...", "<title>", "[your reason here]" and the like."""
    wrapped = len(value) > 1 and (value[0], value[-1]) in {("<", ">"), ("[", "]"), ("{", "}")}
    words = normalise_words(value)
    return wrapped or not words or _PLACEHOLDER.fullmatch(words) is not None


def _edit_key(before: SkillBank, after: SkillBank) -> str:
    return f"{before.fingerprint}>{after.fingerprint}"


def _squeeze(text: str) -> str:
    return "".join(normalise_space(text).split())


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        key = _squeeze(key)
        if key in result:
            raise ValueError(f"key {key!r} twice")
        result[key] = value.strip() if isinstance(value, str) else value
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
