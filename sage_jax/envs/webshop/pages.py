"""The pages of the shop: what is on them, and their text in three modes.

"text" and "text_rich" are the original's observations. "compact" is ours, for small contexts: the instruction is shown
once, on the search page, and a bar stands between the parts.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping, Sequence

from sage_jax.envs.webshop.product import Product

MODES = ("text", "text_rich", "compact")
SEARCH_FORM = "search[<keywords>]"
BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
DESCRIPTION, FEATURES, REVIEWS = "Description", "Features", "Reviews"


class Kind(enum.StrEnum):
    """What a part of a page is."""

    TEXT = "text"
    BUTTON = "button"
    PRODUCT = "product"  # a link to an item page
    OPTION = "option"
    SEARCH = "search"  # the search bar


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a page; `chosen` marks an option that is selected, or a product that was visited."""

    kind: Kind
    text: str
    chosen: bool = False


@dataclasses.dataclass(frozen=True)
class Page:
    """A page: its name ("search", "results", "item", "description", ..., "done") and its parts."""

    name: str
    parts: tuple[Part, ...]

    @property
    def clickable(self) -> tuple[str, ...]:
        """What `click[...]` may name here, lower case, each once."""
        names = (part.text.lower() for part in self.parts if part.kind not in (Kind.TEXT, Kind.SEARCH))
        return tuple(dict.fromkeys(names))

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions on offer; a search is a form to fill in."""
        search = (SEARCH_FORM,) if any(part.kind is Kind.SEARCH for part in self.parts) else ()
        return (*search, *(f"click[{name}]" for name in self.clickable))

    def render(self, mode: str) -> str:
        """Returns the page's text."""
        if mode == "text_rich":
            return _rich(self.parts)
        texts = [part.text.strip() for part in self.parts]
        if mode == "compact":
            return " | ".join(texts[1:] if self.name == "search" else texts[2:] if self.name != "done" else texts)
        return " [SEP] ".join(texts)


def search_page(instruction: str) -> Page:
    """The page an episode starts on."""
    return Page("search", (_text("WebShop"), *_head(instruction), Part(Kind.SEARCH, "Search")))


def results_page(
    instruction: str, products: Sequence[Product], page: int, total: int, size: int, visited: Collection[str]
) -> Page:
    """One page of search results, pages counted from 1."""
    buttons = [BACK, *([PREVIOUS] if page > 1 else []), *([NEXT] if page * size < total else [])]
    parts = [*_head(instruction), _button(BACK), _text(f"Page {page} (Total results: {total})")]
    parts += [_button(name) for name in buttons[1:]]
    for product in products:
        link = Part(Kind.PRODUCT, product.asin, product.asin in visited)
        parts += [link, _text(product.title), _text(product.price_tag)]
    return Page("results", tuple(parts))


def item_page(instruction: str, product: Product, chosen: Mapping[str, str]) -> Page:
    """A product with its options."""
    parts = [*_head(instruction), _button(BACK), _button(PREVIOUS)]
    for name, values in product.options.items():
        parts.append(_text(name))
        parts += [Part(Kind.OPTION, value, chosen.get(name) == value) for value in values]
    parts += [_text(product.title), _text(f"Price: {product.price_tag}"), _text(f"Rating: {product.rating}")]
    parts += map(_button, (DESCRIPTION, FEATURES, REVIEWS, BUY))
    return Page("item", tuple(parts))


def detail_page(instruction: str, product: Product, name: str) -> Page:
    """The description, features or reviews of a product; `name` is the button's, lower case."""
    if name == DESCRIPTION.lower():
        texts = [product.description or "No Description"]
    elif name == FEATURES.lower():
        texts = list(product.bullets) or ["No Features"]
    else:
        texts = [text for review in product.reviews for text in (f'"{review.title}"', review.score, review.body)]
        texts = texts or ["No reviews found"]
    return Page(name, (*_head(instruction), _button(BACK), _button(PREVIOUS), *map(_text, texts)))


def done_page(score: float) -> Page:
    """What a purchase ends on."""
    thanks, label = _text("Thank you for shopping with us!"), _text("Your score (min 0.0, max 1.0)")
    return Page("done", (thanks, label, _text(str(score))))


def _head(instruction: str) -> tuple[Part, Part]:
    return _text("Instruction:"), _text(instruction)


def _text(text: str) -> Part:
    return Part(Kind.TEXT, text)


def _button(name: str) -> Part:
    return Part(Kind.BUTTON, name)


def _rich(parts: Sequence[Part]) -> str:
    """Returns the text with its buttons marked; selected options are told first, the last one on top."""
    told, lines = "", []
    for part in parts:
        marked = f"[clicked button] {part.text} [clicked button_]" if part.chosen else f"[button] {part.text} [button_]"
        if part.kind is Kind.OPTION:
            told = f"You have clicked {part.text}.\n{told}" if part.chosen else told
            lines.append(f"  {marked}\n")
        elif part.kind is Kind.PRODUCT:
            lines.append(f"\n{marked}\n")
        elif part.kind is Kind.TEXT:
            lines.append(f"{part.text}\n")
        else:
            lines.append(f"[button] {part.text} [button_]\n")
    return told + "".join(lines)
