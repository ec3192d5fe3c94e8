"""Pre-training text for the shop: expert traces in small shops drawn at random, and exercises in copying.

Shops, goals and prices come from the corpus's own draws and not from a benchmark's catalogue: the traces teach the
grammar of actions, goal following and copying. A conversation is a list of `data.sft.Message`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from sage_jax.agents.chat import act_text, opening_message, review_message, review_text
from sage_jax.agents.shopper import QUERIES, Shopper, query_skill, shopper_review
from sage_jax.data.sft import Message
from sage_jax.envs.webshop import twin
from sage_jax.envs.webshop.analyser import words
from sage_jax.envs.webshop.catalogue import SEARCH_DEPTH
from sage_jax.envs.webshop.env import SOLVED
from sage_jax.envs.webshop.goals import make_goal
from sage_jax.envs.webshop.nouns import make_tagger
from sage_jax.envs.webshop.product import Product
from sage_jax.envs.webshop.shop import Visit

MODE, PAGE_SIZE = "compact", 5
_COUNT = 2000  # ids look like those of a catalogue of the usual size


class Stall:
    """A small shop in memory with a catalogue's interface: some products of each of a few types."""

    def __init__(self, rng: random.Random, types: int = 4, each: int = 10):
        """Draws the products."""
        seed, departments = rng.getrandbits(32), list(twin.DEPARTMENTS)
        numbers: set[int] = set()
        for _ in range(types):
            place = rng.randrange(len(departments))
            kinds = len(twin.DEPARTMENTS[departments[place]].types)
            period, first = len(departments) * kinds, place + len(departments) * rng.randrange(kinds)
            numbers |= set(range(first, _COUNT, period)[:each])
        # Ids are drawn anew: were they the catalogue's, a model would learn them by heart and not to copy them.
        ids = (twin.make_asin(place, _COUNT) for place in rng.sample(range(_COUNT), len(numbers)))
        products = [twin.make_product(number, _COUNT, seed) for number in sorted(numbers)]
        self.products = [dataclasses.replace(product, asin=asin) for product, asin in zip(products, ids, strict=True)]
        self._words = [Counter(words(product.document)) for product in self.products]
        self._rarity = Counter(word for counts in self._words for word in counts)
        self._goals = np.array(
            [(place, variant) for place, product in enumerate(self.products) for variant in range(product.variants)]
        )

    def product(self, number: int) -> Product:
        """Returns a product."""
        return self.products[number]

    def goals(self, kind: str) -> np.ndarray:
        """Returns [goals, 2]: product and variant."""
        return self._goals

    def search(self, keywords: str) -> tuple[int, ...]:
        """Returns the products that share words with the query, those with rarer ones first."""
        wanted, count = words(keywords), len(self.products)
        scores = [
            sum(math.log(1 + count / self._rarity[word]) for word in wanted if word in counts) for counts in self._words
        ]
        order = sorted(range(count), key=lambda number: -scores[number])
        return tuple(number for number in order if scores[number] > 0)[:SEARCH_DEPTH]


def shopping_trace(
    rng: random.Random, *, max_steps: int = 15, noise: float = 0.05, review: float = 0.5, page_size: int = PAGE_SIZE
) -> list[Message]:
    """One expert episode: optional skills, acts (some overridden by noise and recovered from), maybe a review."""
    stall = Stall(rng)
    goal = make_goal(stall, "synthetic", rng.randrange(len(stall.goals("synthetic"))), rng.getrandbits(32))
    visit = Visit(stall, goal, 0, make_tagger("rules"), page_size)
    skills = [query_skill(query) for query in rng.sample(QUERIES, rng.choice((0, 0, 1, 1, 2)))]
    text = visit.page.render(MODE)
    shopper = Shopper(text, goal.category, " ".join(principle for _, principle in skills), rng)
    messages: list[Message] = [("user", opening_message(text, skills), False)]
    steps = 0
    while True:
        thought, action = shopper.act(text)
        noisy = rng.random() < noise
        if noisy:
            action = _slip(visit, rng)
            shopper.override(action)
        messages.append(("assistant", act_text(thought, action), not noisy))
        visit.play(action)
        text, steps = visit.page.render(MODE), steps + 1
        if visit.score is not None or steps == max_steps:
            break
        messages.append(("user", text, False))
    won = visit.score is not None and visit.score.value >= SOLVED
    if rng.random() < review:
        titles = [title for title, _ in skills]
        asked = review_message(family=goal.category, success=won, steps=steps, titles=titles)
        told = _review(shopper, goal.category, won, rng)
        messages += [("user", asked, False), ("assistant", review_text(*told), True)]
    return messages


def _review(shopper: Shopper, family: str, won: bool, rng: random.Random) -> tuple[str, dict]:
    if won:
        return shopper_review(shopper, family, rng)
    keep = {"name": "keep_skill", "arguments": {"reason": "not found"}}
    return f"not found with {shopper.last_query} .", keep


def _slip(visit: Visit, rng: random.Random) -> str:
    """Returns what a worse agent does: click something, or search for something else; it does not buy."""
    clicks = [action for action in visit.page.actions if action.startswith("click[") and action != "click[buy now]"]
    if clicks and rng.random() < 0.8:
        return rng.choice(clicks)
    return f"search[{rng.choice(visit.goal.attributes)}]"


def pick_exercise(rng: random.Random) -> list[Message]:
    """Of one page of results, say several times which product is asked for: many decisions about few tokens."""
    stall = Stall(rng, types=2, each=6)
    shown = rng.sample(stall.products, 5)
    listed = " | ".join(f"{product.asin} | {product.title} | {product.price_tag}" for product in shown)
    asked, replies = [], []
    for product in rng.sample(shown, rng.randint(2, 5)):
        asked.append(rng.choice((product.title, f"{product.attributes[0]} {product.query}")).lower())
        match = next(p for p in shown if all(word in p.title.lower() for word in asked[-1].split()))
        replies.append(f"need {asked[-1]} . see {match.asin.lower()} .")
    question = " , ".join(asked)
    return [("user", f"{listed} . find {question} .", False), ("assistant", " ".join(replies), True)]


def limit_exercise(rng: random.Random) -> list[Message]:
    """Say of several prices whether they are under a limit."""
    limit = 10 * rng.randint(1, 12)
    prices = [rng.randint(2, 99) for _ in range(rng.randint(3, 8))]
    asked = " , ".join(f"${price}.{rng.choice((0, 25, 5, 75, 99))}" for price in prices)
    replies = [f"{price} under {limit} {'yes' if price < limit else 'no'} ." for price in prices]
    return [("user", f"price lower than {limit}.00 : {asked} .", False), ("assistant", " ".join(replies), True)]


def option_exercise(rng: random.Random) -> list[Message]:
    """Say of several options whether an item page has them."""
    product = twin.make_product(rng.randrange(_COUNT), _COUNT, rng.getrandbits(32))
    listed = " | ".join(f"{name} | {' | '.join(values)}" for name, values in product.options.items())
    replies = []
    for _ in range(rng.randint(2, 6)):
        name = rng.choice(list(product.options))
        value = rng.choice(twin.OPTIONS[name])
        replies.append(f"need {name} {value} . {'yes' if value in product.options[name] else 'none'} .")
    return [("user", f"{listed} .", False), ("assistant", " ".join(replies), True)]


def query_exercise(rng: random.Random) -> list[Message]:
    """Write the search that an instruction and a rule ask for."""
    stall, query = Stall(rng, types=1, each=1), rng.choice(QUERIES)
    goal = make_goal(stall, "synthetic", rng.randrange(len(stall.goals("synthetic"))), 0)
    page = f"Instruction: | {goal.text} | Search"
    opening = opening_message(page, [query_skill(query)])
    shopper = Shopper(page, goal.category, query_skill(query)[1], rng)
    return [("user", opening, False), ("assistant", act_text(*shopper.act(page)), True)]


EXERCISES: tuple[Callable[[random.Random], list[Message]], ...] = (
    pick_exercise,
    limit_exercise,
    option_exercise,
    query_exercise,
)


def conversations(rng: random.Random, progress: Callable[[], float]) -> Iterator[list[Message]]:
    """Yields conversations for ever; `progress()` in [0, 1] moves from exercises to full traces."""
    while True:
        if rng.random() < max(0.3, 0.8 - 8 * progress()):
            yield rng.choices(EXERCISES, (3, 1, 2, 2))[0](rng)
        else:
            yield shopping_trace(rng)


def corpus_words() -> set[str]:
    """Every word and sign that the corpus or the twin's pages can hold."""
    from sage_jax.data.word_tokenizer import split_words

    rng = random.Random(0)
    stream = conversations(rng, lambda: 0.08)
    text = [_PAGE_WORDS, " ".join(twin.words())]
    for _ in range(250):
        text += [message for _, message, _ in next(stream)]
    return set(split_words(" ".join(text)))


_PAGE_WORDS = (
    "webshop instruction : search [sep] back to search | < prev next > page total results ( ) price $ . rating n.a. "
    "description features reviews buy now thank you for shopping with us ! your score min max 0 1 and lower than "
    "dollars no found need see none here left again all chosen not this check under skill type attributes "
    "options first \" '"
)
