"""The official rules, case by case."""

import pytest

from sage_jax.envs.gaia import question_score

NUMBERS = [
    ("17", "17", True),
    ("17.0", "17", True),
    (" 17 ", "17", True),
    ("17", "17.0", True),
    ("$17", "17", True),
    ("17%", "17", True),
    ("1,234", "1234", True),
    ("$1,234.50", "1234.5", True),
    ("1.234,50", "1234.5", False),  # the comma goes, the point stays: 1.23450
    ("-3", "-3", True),
    ("+3", "3", True),
    ("3e2", "300", True),
    ("17 km", "17", False),  # a unit makes it no number
    ("17km", "17", False),
    ("€17", "17", False),  # only $, % and , are taken off
    ("seventeen", "17", False),
    ("", "17", False),
    (None, "17", False),
    ("18", "17", False),
    ("17.001", "17", False),
    ("1 234", "1234", False),
    ("１７", "17", True),  # full-width digits are digits
    ("0.1", ".1", True),
    ("1_000", "1000", True),  # as Python reads numbers
    ("nan", "17", False),
    ("inf", "17", False),
    ("FINAL ANSWER: 17", "17", False),
]
STRINGS = [
    ("Paris", "Paris", True),
    ("paris", "Paris", True),
    (" P a r i s ", "Paris", True),
    ("Paris.", "Paris", True),
    ("'Paris'!", "Paris", True),
    ("New York", "newyork", True),
    ("New-York", "New York", True),
    ("The Paris", "Paris", False),  # articles stay
    ("Pari", "Paris", False),
    ("Mr. O'Neil", "mr oneil", True),
    ("São Paulo", "são paulo", True),
    ("Sao Paulo", "São Paulo", False),  # accents count
    ("STRASSE", "Straße", False),
    ("北京", "北 京", True),
    ("北京。", "北京", False),  # only ASCII punctuation is taken off
    ("“Paris”", "Paris", False),
    ("17 km", "17km", True),
    ("Paris\u00a0", "Paris", True),  # a no-break space is white space
    ("a\tb\nc", "abc", True),
    (None, "None", True),
    (None, "nothing", False),
    ("", "Paris", False),
    ("!!!", "?", True),  # nothing is left of either
    ("1:30", "130 ", False),  # the truth is a number, the answer none
]
LISTS = [
    ("a, b", "a, b", True),
    ("a,b", "a, b", True),
    ("a; b", "a, b", True),
    ("A,B", "a,b", True),
    ("b, a", "a, b", False),
    ("a", "a, b", False),
    ("a, b, c", "a, b", False),
    ("a, b,", "a, b", False),
    ("1, 2", "1, 2", True),
    ("1.0; $2", "1; 2", True),
    ("1, 2%", "1, 2", True),
    ("1, two", "1, 2", False),
    ("a., b", "a, b", False),  # elements keep their punctuation
    ("a-b, c", "a-b, c", True),
    ("x, 5", "x, 5.0", True),
    ("1,234", "1,234", True),  # the comma makes the truth a list of two
    ("1234", "1,234", False),
    ("1, 234", "1,234", True),
    (None, "a, b", False),
    ("", "a, b", False),
    ("北京, 上海", "北京,上海", True),
    ("北京，上海", "北京, 上海", False),  # a full-width comma does not separate
    ("a b, c", "ab, c", True),
]


@pytest.mark.parametrize(("answer", "truth", "right"), [*NUMBERS, *STRINGS, *LISTS])
def test_official_rules(answer, truth, right):
    assert question_score(answer, truth) == right


def test_there_are_enough_cases_of_each_kind():
    assert len(NUMBERS) + len(STRINGS) + len(LISTS) >= 60
    assert min(map(len, (NUMBERS, STRINGS, LISTS))) >= 20
