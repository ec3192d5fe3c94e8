"""From what the model wrote to an action or a tool call. Never raises: every oddity of the text is a flag.

Tags and their contents may carry the spaces that a word-level tokenizer leaves when it decodes.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections import Counter
from collections.abc import Sequence

from sage_jax.skills import CallFailure, ToolCall, parse_tool_call

REPEAT_WORDS = 8  # a run of this many words that occurs REPEAT_TIMES is a repetition; an honest plan does not loop so
REPEAT_TIMES = 3
_THINK_OPEN = re.compile(r"<\s*think\s*>", re.IGNORECASE)
_THINK_CLOSE = re.compile(r"<\s*/\s*think\s*>", re.IGNORECASE)
_ACTION_OPEN = re.compile(r"<\s*action\s*>", re.IGNORECASE)
_ACTION_CLOSE = re.compile(r"<\s*/\s*action\s*>", re.IGNORECASE)
_TOOL_OPEN = re.compile(r"<\s*tool_call\s*>", re.IGNORECASE)
_TOOL_CLOSE = re.compile(r"<\s*/\s*tool_call\s*>", re.IGNORECASE)
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_PLACEHOLDER = re.compile(r"<[a-z_ ]+>", re.IGNORECASE)
_DONE = re.compile(
    r"(i am |i'm )?(done|finished|finish|stop|end|exit|quit|submit)"
    r"|(the |my )?(task|goal)( is| has been| was)?( now)? (done|completed?|finished|achieved)"
)


class Flag(enum.StrEnum):
    """What is odd about a turn's text. Shaping prices some of these by name."""

    NO_THINK = "no_think"  # no closing </think>
    NO_THINK_OPEN = "no_think_open"  # no <think>; harmless where the prompt ends with it
    NO_ACTION = "no_action"  # no complete <action>...</action> after the thought
    MANY_ACTIONS = "many_actions"
    NO_TOOL_TAGS = "no_tool_tags"  # no complete <tool_call>...</tool_call> after the thought
    EMPTY = "empty"  # nothing written, or an empty action
    NOT_ADMISSIBLE = "not_admissible"  # an action that the environment does not offer
    REPETITION = "repetition"
    TRUNCATED = "truncated"  # cut at the token limit
    CLAIMS_COMPLETION = "claims_completion"  # the action says that the task is done


@dataclasses.dataclass(frozen=True)
class ActParse:
    """An act turn as read.

    Attributes:
      action: in lower case with single spaces, or as `admissible` spells it; None when there is none.
      thought: text before </think>, without the tags.
      flags: what is odd.
    """

    action: str | None
    thought: str
    flags: frozenset[Flag]


@dataclasses.dataclass(frozen=True)
class ReviewParse:
    """A review turn as read: the call or why there is none, the thought, and what is odd."""

    call: ToolCall | CallFailure
    thought: str
    flags: frozenset[Flag]


def parse_act(text: str, *, truncated: bool = False, admissible: Sequence[str] | None = None) -> ActParse:
    """Reads `<think>..</think><action>..</action>`.

    The action is the first complete block after the thought ends. verl-agent takes the first block of the whole text,
    which acts on a tag that the thought merely mentions. Of several blocks the first counts, as there, because what
    follows it was written without having seen its result. Text without tags is no action (verl-agent would send its
    last 30 characters), so that the environment never acts on words that were not meant as an action.

    Args:
      text: the output, decoded.
      truncated: generation stopped at the token limit.
      admissible: the actions on offer; an action that differs from one of them in case or spaces only becomes it, any
        other is flagged and kept. One with `<placeholders>`, such as "search[<keywords>]", is a form: any text may
        stand there. None: not checked.
    """
    flags = _common_flags(text, truncated)
    thought, rest = _split_thought(text)
    if Flag.EMPTY in flags:
        return ActParse(None, "", flags)
    blocks = _blocks(rest, _ACTION_OPEN, _ACTION_CLOSE)
    if not blocks:
        return ActParse(None, thought, flags | {Flag.NO_ACTION})
    if len(blocks) > 1:
        flags |= {Flag.MANY_ACTIONS}
    action = " ".join(blocks[0].lower().split())
    if not action:
        return ActParse(None, thought, flags | {Flag.EMPTY})
    if admissible is not None:
        match = _match(action, admissible)
        if match is not None:
            return ActParse(match, thought, flags)
        flags |= {Flag.NOT_ADMISSIBLE}
    if _DONE.fullmatch(action.strip(" .!")):
        flags |= {Flag.CLAIMS_COMPLETION}
    return ActParse(action, thought, flags)


def parse_code(text: str, *, truncated: bool = False) -> ActParse:
    """Reads a turn of an agent that writes code: `<action>..</action>`, else a fenced block; kept to the letter.

    The first block after the thought counts, as in `parse_act`; a fence inside the tags is taken off. A turn cut at
    the token limit holds code only where its block was closed.
    """
    flags = _common_flags(text, truncated) - {Flag.REPETITION}  # code repeats itself with good reason
    thought, rest = _split_thought(text)
    if Flag.EMPTY in flags:
        return ActParse(None, "", flags)
    blocks = _blocks(rest, _ACTION_OPEN, _ACTION_CLOSE) or [match[1] for match in _FENCE.finditer(rest)]
    if not blocks:
        return ActParse(None, thought, flags | {Flag.NO_ACTION})
    if len(blocks) > 1:
        flags |= {Flag.MANY_ACTIONS}
    fenced = _FENCE.fullmatch(blocks[0].strip())
    code = (fenced[1] if fenced else blocks[0]).strip("\n").rstrip()
    return ActParse(code, thought, flags) if code.strip() else ActParse(None, thought, flags | {Flag.EMPTY})


def parse_review(text: str, *, truncated: bool = False) -> ReviewParse:
    """Reads `<think>..</think><tool_call>{..}</tool_call>`; only what follows the thought can be a call."""
    flags = _common_flags(text, truncated)
    thought, rest = _split_thought(text)
    if not _blocks(rest, _TOOL_OPEN, _TOOL_CLOSE):
        flags |= {Flag.NO_TOOL_TAGS}
    return ReviewParse(parse_tool_call(rest), thought, flags)


def _common_flags(text: str, truncated: bool) -> frozenset[Flag]:
    flags = {Flag.TRUNCATED} if truncated else set()
    if not text.strip():
        return frozenset(flags | {Flag.EMPTY})
    if not _THINK_OPEN.search(text):
        flags.add(Flag.NO_THINK_OPEN)
    if not _THINK_CLOSE.search(text):
        flags.add(Flag.NO_THINK)
    if _repeats(text):
        flags.add(Flag.REPETITION)
    return frozenset(flags)


def _split_thought(text: str) -> tuple[str, str]:
    """Returns (thought, what follows the last </think>); without </think> the thought is "" and all text follows."""
    closes = list(_THINK_CLOSE.finditer(text))
    if not closes:
        return "", text
    opened = _THINK_OPEN.search(text, 0, closes[-1].start())
    thought = text[opened.end() if opened else 0 : closes[-1].start()]
    return thought.strip(), text[closes[-1].end() :]


def _blocks(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> list[str]:
    """Returns the contents of the complete blocks, in order."""
    blocks, position = [], 0
    while (start := opening.search(text, position)) and (end := closing.search(text, start.end())):
        blocks.append(text[start.end() : end.start()])
        position = end.end()
    return blocks


def _match(action: str, admissible: Sequence[str]) -> str | None:
    """Returns the admissible action that reads like `action` but for case and spaces; equal spacing wins."""
    if action in admissible:
        return action
    squeezed = action.replace(" ", "")
    plain = next((a for a in admissible if "".join(a.lower().split()) == squeezed), None)
    if plain is not None:
        return plain
    return next(filter(None, (_fill(action, form) for form in admissible if is_form(form))), None)


def is_form(action: str) -> bool:
    """Whether an admissible action has a placeholder for text of the agent's own."""
    return _PLACEHOLDER.search(action) is not None


def _fill(action: str, form: str) -> str | None:
    """Returns the action in the spelling of the form, or None when it is no filled form."""
    fixed = [part.lower() for part in _PLACEHOLDER.split(form)]
    pattern = "(.+)".join(r"\s*".join(map(re.escape, "".join(part.split()))) for part in fixed)
    match = re.fullmatch(pattern, action)
    words = [" ".join(group.split()) for group in match.groups()] if match else [""]
    if not all(words):
        return None
    return "".join(part + word for part, word in zip(fixed, [*words, ""], strict=True))


def _repeats(text: str) -> bool:
    words = text.lower().split()
    runs = Counter(tuple(words[i : i + REPEAT_WORDS]) for i in range(len(words) - REPEAT_WORDS + 1))
    return any(count >= REPEAT_TIMES for count in runs.values())
