"""One visit to the shop: from the search page to a purchase. Pages in, pages out; no text, no network."""

from __future__ import annotations

import re

from sage_jax.envs.webshop import pages
from sage_jax.envs.webshop.goals import Goal, Wares, product_price
from sage_jax.envs.webshop.nouns import Tagger
from sage_jax.envs.webshop.pages import Page
from sage_jax.envs.webshop.product import Product
from sage_jax.envs.webshop.reward import Score, score_purchase

PAGE_SIZE = 10
_ACTION = re.compile(r"(.+)\[(.+)\]")
_DETAILS = tuple(name.lower() for name in (pages.DESCRIPTION, pages.FEATURES, pages.REVIEWS))


class Visit:
    """The state of one episode.

    Attributes:
      page: what is shown.
      options: what is chosen on the item page, value by name.
      score: of the purchase, None before it.
    """

    def __init__(self, catalogue: Wares, goal: Goal, seed: int, tagger: Tagger, page_size: int = PAGE_SIZE) -> None:
        """Starts on the search page; `seed` is that of the prices."""
        self._catalogue, self.goal, self._seed = catalogue, goal, seed
        self._tagger, self._page_size = tagger, page_size
        self.score: Score | None = None
        self._start()

    def play(self, action: str) -> bool:
        """Plays an action; returns False when it is none of this page, which changes nothing.

        As in the original, a search is possible from every page, though only the search page offers it.
        """
        match = _ACTION.match(action.strip())
        name, argument = match.groups() if match else (action, "")
        argument = argument.lower().strip()
        if self.score is not None:
            return False
        if name == "search" and argument:
            self._search(argument, 1)
            return True
        if name != "click" or argument not in self.page.clickable:
            return False
        self._click(argument)
        return True

    @property
    def product(self) -> Product | None:
        """The product whose pages are open."""
        return None if self._number is None else self._catalogue.product(self._number)

    @property
    def chosen(self) -> dict[str, str]:
        """The options that are selected, value by name."""
        return dict(self._options)

    def _start(self) -> None:
        self._keywords, self._hits, self._results = "", (), 1
        self._visited: set[str] = set()
        self._number: int | None = None
        self._options: dict[str, str] = {}
        self.page: Page = pages.search_page(self.goal.text)

    def _search(self, keywords: str, page: int) -> None:
        self._keywords, self._results, self._number, self._options = keywords, page, None, {}
        self._hits = self._catalogue.search(keywords)
        first = (page - 1) * self._page_size
        shown = [self._catalogue.product(hit) for hit in self._hits[first : first + self._page_size]]
        total = len(self._hits)
        self.page = pages.results_page(self.goal.text, shown, page, total, self._page_size, self._visited)

    def _click(self, name: str) -> None:
        product = self.product
        if name == pages.BACK.lower():
            self._start()
        elif name == pages.NEXT.lower():
            self._search(self._keywords, self._results + 1)
        elif name == pages.PREVIOUS.lower() and self.page.name == "results":
            self._search(self._keywords, self._results - 1)
        elif name == pages.PREVIOUS.lower() and self.page.name == "item":
            self._search(self._keywords, self._results)
        elif product is None:
            self._open(name.upper())
        elif name == pages.BUY.lower():
            self._buy(product)
        elif name in _DETAILS:
            self.page = pages.detail_page(self.goal.text, product, name)
        else:
            if name != pages.PREVIOUS.lower():
                self._choose(product, name)
            self.page = pages.item_page(self.goal.text, product, self._options)

    def _open(self, asin: str) -> None:
        self._number = next(hit for hit in self._hits if self._catalogue.product(hit).asin.upper() == asin)
        product = self._catalogue.product(self._number)
        self._visited.add(product.asin)
        self.page = pages.item_page(self.goal.text, product, self._options)

    def _choose(self, product: Product, value: str) -> None:
        # Where two options share a value, a click means the later one, as in the original.
        name = [name for name, values in product.options.items() if value in values][-1]
        self._options[name] = value

    def _buy(self, product: Product) -> None:
        price = product_price(product, self._seed)
        self.score = score_purchase(self.goal, product, self._options, price, self._tagger)
        self.page = pages.done_page(self.score.value)
