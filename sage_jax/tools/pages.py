"""HTML -> what an agent sees: markdown, and the buttons it can click."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

import bs4
import markdownify

_NO_PAGE = re.compile(
    r"\.(?:jpe?g|png|gif|webp|svg|ico|bmp|pdf|zip|gz|rar|7z|mp[34]|avi|mov|docx?|xlsx?|pptx?|css|js)$", re.I
)
_ONCLICK = re.compile(r"""(?:location(?:\.href)?|window\.open)\s*(?:=|\()\s*['"]([^'"]+)['"]""")
_STANDARD_PORTS = (80, 443)
_BLANKS = re.compile(r"\n\s*\n\s*\n+")
_DROPPED = ("script", "style", "noscript", "template", "svg", "iframe", "head")


@dataclasses.dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
      url: where it was found, after redirects.
      title: of the document.
      markdown: its text.
      buttons: text -> address, in the page's order. A text that occurs again for another address is keyed "text (2)".
    """

    url: str
    title: str
    markdown: str
    buttons: dict[str, str]


def read_page(html: str | bytes, url: str, root: str | None) -> Page:
    """Reads a page; only links under `root` that are not images, documents or downloads become buttons.

    Args:
      html: the document.
      url: its address, which relative links start from.
      root: address of the site's root; see `under_root`.
    """
    soup = bs4.BeautifulSoup(html, "html.parser")
    title = _flat(soup.title.get_text()) if soup.title else ""
    base = soup.find("base", href=True)
    start = urllib.parse.urljoin(url, base["href"]) if base else url
    buttons: dict[str, str] = {}
    for element in soup.find_all(["a", "button"]):
        target = element.get("href") or element.get("formaction") or _script_target(element.get("onclick", ""))
        text = _flat(element.get_text(" ")) or _flat(element.get("title") or element.get("aria-label") or "")
        address = _resolve(start, target)
        if text and address and under_root(address, root) and not _NO_PAGE.search(urllib.parse.urlsplit(address).path):
            _add(buttons, text, address)
    for element in soup.find_all(_DROPPED):
        element.decompose()
    body = markdownify.MarkdownConverter(
        heading_style="ATX", strip=["a", "img"], escape_underscores=False, escape_asterisks=False
    ).convert_soup(soup)
    return Page(url, title, _BLANKS.sub("\n\n", body).strip(), buttons)


def under_root(url: str, root: str | None) -> bool:
    """Whether an address lies on the host of `root` (or a subdomain of it) and, if `root` has a path, below that.

    With no root, every http or https address does.
    """
    try:
        own, top = urllib.parse.urlsplit(url), urllib.parse.urlsplit(url if root is None else root)
        ports = [None if parts.port in _STANDARD_PORTS else parts.port for parts in (own, top)]
    except ValueError:  # a port that is none, a broken IPv6 address
        return False
    if own.scheme not in ("http", "https") or not own.hostname or not top.hostname or ports[0] != ports[1]:
        return False
    host = top.hostname.removeprefix("www.")
    if own.hostname != host and not own.hostname.endswith(f".{host}"):
        return False
    folder = "/" if root is None else top.path.rpartition("/")[0] + "/"
    return own.path.startswith(folder) or f"{own.path}/" == folder


def _add(buttons: dict[str, str], text: str, address: str) -> None:
    key, number = text, 1
    while key in buttons and buttons[key] != address:
        number += 1
        key = f"{text} ({number})"
    buttons.setdefault(key, address)


def _resolve(start: str, target: str | None) -> str | None:
    """Returns the address of a link without its fragment; None for links inside the page and other schemes."""
    if not target or target.startswith("#"):
        return None
    try:
        return urllib.parse.urldefrag(urllib.parse.urljoin(start, target.strip())).url
    except ValueError:  # "http://[broken"
        return None


def _script_target(script: str) -> str | None:
    found = _ONCLICK.search(script)
    return found.group(1) if found else None


def _flat(text: str) -> str:
    return " ".join(text.split())
