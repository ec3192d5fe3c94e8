"""The nouns of a title, which the reward compares.

The original tags titles with spaCy's English model, a download. "rules" needs none: in titles nearly every word is a
noun or written like a name, so what counts is which words are not. Whichever tagger scores an episode is named in the
last step's info, and in the run's configuration.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable

from sage_jax.errors import ConfigError

RULES = "rules"
Tagger = Callable[[str], tuple[str, ...]]

_WORD = re.compile(r"[^\W_]+(?:'s\b)?")
_FUNCTION_WORDS = frozenset(
    "a an the this that these those my your our their his her its i you we they he she it who which what and or "
    "but nor so if as at by for from in into of off on onto out over per than to up upon with within without "
    "under between through during before after around about against along across behind below beneath beside "
    "beyond near since until via versus vs is are was were be been being am do does did has have had can could "
    "will would should may might must not no yes all any both each every either neither few many more most much "
    "several some such only own same too very just also how when where why there here while once".split()
)
_ADJECTIVES = frozenset(
    "adjustable anti automatic available best better big black blue breathable bright brown casual cheap classic "
    "clear cold compatible comfortable cool cordless cute dark deep different double dry dual durable easy "
    "elastic electric elegant extra fast fine flat flexible foldable free fresh full functional funny genuine "
    "good gray great green grey half hard heavy high hot huge ideal indoor inner large light lightweight little "
    "long loose low main male female mini modern multi natural new nice non old one open organic original outdoor "
    "perfect personal pink plain portable powerful professional pure purple quick rechargeable red regular "
    "replacement retro rich round safe sexy sharp short silent simple single sleeveless slim small smart smooth "
    "soft solid special stainless standard strong stylish super sweet thick thin tight tiny top total travel true "
    "ultra unique universal upgraded vintage warm washable waterproof wet white wide wireless yellow young".split()
)
_NOT_ADVERBS = frozenset("assembly belly butterfly doily family fly italy jelly july lily reply supply".split())


def rule_nouns(title: str) -> tuple[str, ...]:
    """Returns the nouns of a title, lower case, with repetitions.

    Left out are function words, numbers, adverbs in -ly, and common adjectives that are not written like a name.
    """
    found = []
    for word in _WORD.findall(title):
        lower = word.lower().removesuffix("'s")
        named = word[0].isupper() and not word.isupper()
        adverb = lower.endswith("ly") and len(lower) > 4 and lower not in _NOT_ADVERBS
        plain = lower in _ADJECTIVES and not named
        if lower[0].isdigit() or lower in _FUNCTION_WORDS or adverb or plain:
            continue
        found.append(lower)
    return tuple(found)


@functools.cache
def make_tagger(name: str) -> Tagger:
    """Returns the tagger of a name: "rules", or an installed spaCy pipeline such as "en_core_web_sm".

    Raises:
      ConfigError: there is no such pipeline.
    """
    if name == RULES:
        return functools.lru_cache(maxsize=8192)(rule_nouns)
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"shop_nouns={name!r}: no such package; install that spaCy pipeline or use {RULES!r}")
    import spacy

    pipeline = spacy.load(name, exclude=["parser", "ner", "lemmatizer"])

    @functools.lru_cache(maxsize=8192)
    def tag(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in pipeline(title) if token.pos_ in ("NOUN", "PROPN"))

    return tag
