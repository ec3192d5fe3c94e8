"""HTML -> markdown and buttons, and which addresses belong to a site."""

import pytest

from sage_jax.tools.pages import read_page, under_root

ROOT = "https://www.example.org/docs/"


def test_text_and_buttons():
    html = """<html><head><title> The  title </title><style>p {color: red}</style></head><body>
      <h1>Heading</h1><p>Some <b>bold</b> text.</p><script>alert(1)</script>
      <a href="a.html">Read more</a> <a href="b.html">Read  more</a> <a href="/docs/a.html#part">Read more</a>
      <a href="#top">Top</a> <a href="mailto:a@b.c">Mail</a> <a href="https://other.org/">Other</a>
      <a href="flyer.PDF">Flyer</a> <a href="photo.jpg">Photo</a> <a href="javascript:void(0)">Script</a>
      <button onclick="location.href='c.html'">Go</button> <button onclick='window.open("d.html")'>Open</button>
      <a href="e.html" title="Icon"><img src="x.png"></a> <a href="http://[broken">Broken</a>
      <table><tr><th>Fee</th><td>20</td></tr></table></body></html>"""
    page = read_page(html, f"{ROOT}index.html", ROOT)
    assert page.title == "The title"
    assert page.buttons == {
        "Read more": f"{ROOT}a.html",
        "Read more (2)": f"{ROOT}b.html",
        "Go": f"{ROOT}c.html",
        "Open": f"{ROOT}d.html",
        "Icon": f"{ROOT}e.html",
    }
    assert page.markdown.startswith("# Heading\n\nSome **bold** text.")
    assert "| Fee | 20 |" in page.markdown
    assert "alert" not in page.markdown
    assert "color" not in page.markdown


def test_a_button_may_be_called_like_a_key():
    html = '<a href="a">X</a><a href="b">X (2)</a><a href="c">X</a>'
    assert read_page(html, ROOT, ROOT).buttons == {"X": f"{ROOT}a", "X (2)": f"{ROOT}b", "X (3)": f"{ROOT}c"}


def test_base_element_moves_relative_links():
    page = read_page('<base href="/docs/sub/"><a href="a">A</a>', ROOT, ROOT)
    assert page.buttons == {"A": f"{ROOT}sub/a"}


@pytest.mark.parametrize("html", ["", "<", "<p><p><div></p>", "<a href>x</a>", b"\xff\xfe\x00", "<!--"])
def test_broken_documents_are_read_as_far_as_they_go(html):
    assert read_page(html, ROOT, ROOT).buttons == {}


@pytest.mark.parametrize(
    ("url", "root", "inside"),
    [
        ("https://www.example.org/docs/a", ROOT, True),
        ("http://example.org/docs/a", ROOT, True),  # without www, and over http
        ("https://sub.example.org/docs/", ROOT, True),
        ("https://www.example.org/docs", ROOT, True),
        ("https://www.example.org/doc", ROOT, False),
        ("https://www.example.org/other/", ROOT, False),
        ("https://badexample.org/docs/", ROOT, False),
        ("https://example.org.evil.net/docs/", ROOT, False),
        ("https://www.example.org:8443/docs/", ROOT, False),
        ("https://user@evil.net/docs/", ROOT, False),
        ("ftp://www.example.org/docs/", ROOT, False),
        ("https://www.example.org:port/docs/", ROOT, False),
        ("https://example.org/any/where", "https://example.org", True),
        ("https://example.org/cn/x", "https://example.org/cn/index.html", True),
        ("http://127.0.0.1:81/a", "http://127.0.0.1:80/", False),
    ],
)
def test_under_root(url, root, inside):
    assert under_root(url, root) == inside
