"""Search over texts at hand, and over a web API of a real server on the loopback interface."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sage_jax.errors import ConfigError
from sage_jax.tools import ToolFailure, ToolOutcome
from sage_jax.tools.search import Document, LocalSearch, WebSearch, WebSearchOptions

DOCUMENTS = [
    Document("a", "Team Atlas", "Lead Olga Petit"),
    Document("b", "Team Cobalt", "Lead Hugo Roth"),
    Document("c", "Harbours", "Ships and cranes of the harbour"),
]


def test_local():
    search = LocalSearch(DOCUMENTS, hits=2)
    assert search.search("who leads team cobalt").splitlines()[0] == "Team Cobalt | b | Lead Hugo Roth"
    assert search.search("harbour").splitlines() == ["Harbours | c | Ships and cranes of the harbour"]
    for nothing in ("zebra", "the of", "", "?!"):
        with pytest.raises(ToolFailure, match="nothing found"):
            search.search(nothing)
    with pytest.raises(ToolFailure):
        LocalSearch([]).search("x")


@pytest.fixture
def api():
    class Handler(BaseHTTPRequestHandler):
        seen = []
        answer = (200, b"{}")

        def do_GET(self):
            Handler.seen.append((self.path, self.headers.get("X-Key")))
            status, body = Handler.answer
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield Handler, f"http://127.0.0.1:{server.server_address[1]}/search"
    server.shutdown()
    server.server_close()


def test_web(api, monkeypatch):
    handler, url = api
    monkeypatch.setenv("SEARCH_KEY", "s3cret")
    options = WebSearchOptions(url, key_env="SEARCH_KEY", key_header="X-Key", results="web.results", hits=1)
    search = WebSearch(options)
    hits = [{"title": "T", "url": "u", "description": " many\n words "}, {"title": "U", "url": "v"}]
    handler.answer = (200, json.dumps({"web": {"results": hits}}).encode())
    assert search.search("a b") == "T | u | many words"
    assert handler.seen == [("/search?q=a+b", "s3cret")]
    assert "s3cret" not in repr(options)
    for answer, outcome in {
        (200, b'{"web": {"results": []}}'): ToolOutcome.NOT_FOUND,
        (200, b'{"web": 3}'): ToolOutcome.UNREACHABLE,
        (200, b"not json"): ToolOutcome.UNREACHABLE,
        (429, b"s3cret"): ToolOutcome.UNREACHABLE,
    }.items():
        handler.answer = answer
        with pytest.raises(ToolFailure) as failure:
            search.search("x")
        assert failure.value.outcome is outcome
        assert "s3cret" not in str(failure.value)
        assert failure.value.__cause__ is None


def test_refusals(monkeypatch):
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(ConfigError, match="search_key_env='NO_KEY'"):
        WebSearchOptions("http://x", key_env="NO_KEY")
    with pytest.raises(ConfigError, match="search_url='x'"):
        WebSearchOptions("x")
