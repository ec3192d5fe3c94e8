"""GAIA's rules for comparing an answer with the truth, as its leaderboard applies them.

The truth decides: a number is compared as a number, a text with a comma or semicolon as a list, anything else as a
text without white space and punctuation.
"""

from __future__ import annotations

import re
import string

_UNITS = str.maketrans("", "", "$%,")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def question_score(answer: str | None, truth: str) -> bool:
    """Whether an answer counts as right.

    Args:
      answer: what the agent gave; None, the lack of one, is read as the text "None".
      truth: the reference answer.
    """
    answer = "None" if answer is None else answer
    if _is_number(truth):
        return _number(answer) == float(truth)
    if re.search("[,;]", truth):
        return _lists_match(answer, truth)
    return _plain(answer).translate(_PUNCTUATION) == _plain(truth).translate(_PUNCTUATION)


def _lists_match(answer: str, truth: str) -> bool:
    given, wanted = (re.split("[,;]", text) for text in (answer, truth))
    if len(given) != len(wanted):
        return False
    return all(
        _number(mine) == float(right) if _is_number(right) else _plain(mine) == _plain(right)
        for mine, right in zip(given, wanted, strict=True)
    )


def _number(text: str) -> float:
    """Returns a number without its units and thousands separators; infinity for what is none."""
    stripped = text.translate(_UNITS)
    return float(stripped) if _is_number(stripped) else float("inf")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(text: str) -> str:
    """Returns a text in lower case without white space."""
    return re.sub(r"\s", "", text).lower()
