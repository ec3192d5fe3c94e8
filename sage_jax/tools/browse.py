"""Walking one website by its buttons, and looking for words on the page at hand."""

from __future__ import annotations

from sage_jax.tools.base import Tool, ToolFailure, ToolOutcome, ToolSpec, cut
from sage_jax.tools.fetch import PageClient
from sage_jax.tools.pages import Page

_FOUND = 8  # passages that `find` shows at most


class Browser:
    """One visit to one website."""

    def __init__(self, client: PageClient, root: str | None, *, page_chars: int = 6000, most_buttons: int = 80):
        """Stands on no page yet.

        Args:
          client: fetches pages.
          root: address of the site's root, outside of which nothing is visited; None: the public internet.
          page_chars: characters of a page's markdown shown at most.
          most_buttons: buttons shown at most; all of them can be clicked.
        """
        self._client, self.root = client, root
        self._page_chars, self._most_buttons = page_chars, most_buttons
        self.page: Page | None = None
        self.visited: list[str] = []

    def open(self, url: str) -> str:
        """Goes to an address and returns what is to be seen there. Raises ToolFailure and stays where it was."""
        self.page = self._client.page(url, self.root)
        self.visited.append(self.page.url)
        return self.view()

    def visit_page(self, button: str) -> str:
        """Clicks a button of the page at hand."""
        if self.page is None:
            if self.root is None:
                raise ToolFailure(ToolOutcome.NOT_FOUND, "no page is open")
            return self.open(self.root)
        wanted = " ".join(button.split())
        folded = {text.casefold(): text for text in reversed(list(self.page.buttons))}
        text = wanted if wanted in self.page.buttons else folded.get(wanted.casefold())
        if text is None:
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"no button {button[:80]!r} on this page")
        return self.open(self.page.buttons[text])

    def find(self, text: str) -> str:
        """Returns the lines of the page at hand that hold a text, in whatever case."""
        if self.page is None:
            raise ToolFailure(ToolOutcome.NOT_FOUND, "no page is open")
        lines = [line for line in self.page.markdown.splitlines() if text.casefold() in line.casefold()]
        if not text.strip() or not lines:
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"{text[:80]!r} does not occur on this page")
        more = f"\n[{len(lines) - _FOUND} more]" if len(lines) > _FOUND else ""
        return "\n".join(lines[:_FOUND]) + more

    def view(self) -> str:
        """Returns the page at hand as text, then its buttons."""
        assert self.page is not None
        shown = list(self.page.buttons)[: self._most_buttons]
        left = len(self.page.buttons) - len(shown)
        buttons = "\n".join(f"- {text}" for text in shown) + (f"\n[{left} more buttons]" if left else "")
        return f"{cut(self.page.markdown, self._page_chars)}\n\nButtons:\n{buttons or '(none)'}"

    def tools(self) -> list[Tool]:
        """Returns `visit_page` and `find`."""
        visit = ToolSpec(
            "visit_page",
            "Click a button of the current page and see the page it leads to.",
            {"button": ("string", "the button's text, exactly as listed")},
        )
        return [Tool(visit, self.visit_page), self.find_tool()]

    def open_tools(self) -> list[Tool]:
        """Returns `open_page`, by address, and `find`."""
        spec = ToolSpec("open_page", "Open a page by its address.", {"url": ("string", "the address, http or https")})
        return [Tool(spec, self.open), self.find_tool()]

    def find_tool(self) -> Tool:
        """Returns `find`."""
        spec = ToolSpec(
            "find", "Show the lines of the current page that contain a text.", {"text": ("string", "what to look for")}
        )
        return Tool(spec, self.find)
