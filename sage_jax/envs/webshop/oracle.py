"""What to do next when the goal's own product is known: proves that a goal can be reached. Agents never see it."""

from __future__ import annotations

from sage_jax.envs.webshop import pages
from sage_jax.envs.webshop.shop import Visit


class Oracle:
    """Searches for the title of the goal's product, chooses its options and buys it."""

    def __init__(self, visit: Visit) -> None:
        """Watches a visit."""
        self._visit, self._searched = visit, False

    def suggest(self) -> str | None:
        """Returns the next action, or None when the search for the title does not find the product."""
        visit, goal = self._visit, self._visit.goal
        page, here = visit.page, visit.product
        if visit.score is not None:
            return None
        if page.name == "search":
            return f"search[{goal.title.lower()}]" if any(map(str.isalnum, goal.title)) else None
        if here is None:
            for name in (goal.asin.lower(), pages.NEXT.lower()):
                if name in page.clickable:
                    return f"click[{name}]"
            return None
        if here.asin != goal.asin:
            return f"click[{pages.BACK.lower()}]"
        if page.name != "item":
            return f"click[{pages.PREVIOUS.lower()}]"
        chosen = visit.chosen.values()
        # A value with a bracket of its own cannot be named in an action, in the original either.
        possible = [value for value in goal.options if value in page.clickable and "[" not in value]
        missing = [value for value in possible if value not in chosen]
        return f"click[{missing[0] if missing else pages.BUY.lower()}]"
