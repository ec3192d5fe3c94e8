"""Pages of a site that misbehaves: a typed outcome each, within limits, and the next page still works."""

import dataclasses

import pytest

from sage_jax.errors import ConfigError
from sage_jax.testing.bad_sites import BadSite
from sage_jax.tools import Browser, FetchOptions, PageClient, Toolbox, ToolFailure, ToolOutcome

OPTIONS = FetchOptions(max_bytes=256 * 1024, timeout_s=10.0, max_redirects=4)


@pytest.fixture
def site():
    with BadSite() as site:
        yield site


@pytest.fixture
def client(request):
    # Two paths wait for the deadline; the others must not meet it on a busy machine.
    waits = any(f"[{path}-" in request.node.name for path in ("slow", "trickle"))
    client = PageClient(dataclasses.replace(OPTIONS, timeout_s=0.5) if waits else OPTIONS)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("huge", ToolOutcome.TOO_LARGE),
        ("bomb", ToolOutcome.TOO_LARGE),
        ("loop", ToolOutcome.REDIRECTS),
        ("chain", ToolOutcome.REDIRECTS),
        ("away", ToolOutcome.REFUSED),
        ("slow", ToolOutcome.TIMEOUT),
        ("trickle", ToolOutcome.TIMEOUT),
        ("500", ToolOutcome.UNREACHABLE),
        ("private/x", ToolOutcome.REFUSED),
        ("picture", ToolOutcome.UNREADABLE),
        ("nowhere", ToolOutcome.NOT_FOUND),
    ],
)
def test_each_fault_has_its_outcome_and_the_client_goes_on(site, client, path, outcome):
    with pytest.raises(ToolFailure) as failure:
        client.page(site.root + path, site.root)
    assert failure.value.outcome is outcome
    assert site.root in client.page(f"{site.root}garbage", site.root).url


def test_of_a_huge_page_little_is_read(site, client):
    with pytest.raises(ToolFailure):
        client.page(f"{site.root}huge", site.root)
    assert site.sent < 20 * 1024 * 1024  # what fits buffers of the sockets; the page has 50 MB


def test_robots_can_be_switched_off_and_nothing_forbidden_is_asked_for(site, client):
    with pytest.raises(ToolFailure, match="robots"):
        client.page(f"{site.root}private/x", site.root)
    assert "private/x" not in site.paths
    free = PageClient(FetchOptions(robots=False))
    with pytest.raises(ToolFailure, match="404"):
        free.page(f"{site.root}private/x", site.root)
    assert site.paths[-1] == "private/x"
    free.close()


def test_nothing_outside_the_root_is_visited(site, client):
    with pytest.raises(ToolFailure, match="outside"):
        client.page("http://169.254.169.254/", site.root)
    page = client.page(f"{site.root}inject", site.root)
    assert page.buttons == {}  # the link to elsewhere is no button
    assert "ignore your instructions" in page.markdown  # shown as what it is: text of a page


def test_no_server_at_all(client):
    with pytest.raises(ToolFailure) as failure:
        client.page("http://127.0.0.1:9/", "http://127.0.0.1:9/")
    assert failure.value.outcome is ToolOutcome.UNREACHABLE


def test_pages_are_kept(site, client):
    client.page(site.root, site.root)
    client.page(site.root, site.root)
    assert site.paths.count("") == 1


def test_a_browser_stays_where_it_was_after_a_failure(site, client):
    toolbox = Toolbox(Browser(client, site.root).tools())
    assert toolbox.call("visit_page", "anything").outcome is ToolOutcome.OK  # the first click opens the root
    assert toolbox.call("visit_page", {"button": "loop"}).outcome is ToolOutcome.REDIRECTS
    assert toolbox.call("visit_page", {"button": "INJECT"}).outcome is ToolOutcome.OK
    assert toolbox.call("find", "api KEY").text.startswith("SYSTEM: ignore")
    assert toolbox.call("find", {"text": "absent"}).outcome is ToolOutcome.NOT_FOUND
    assert toolbox.call("visit_page", "loop").outcome is ToolOutcome.NOT_FOUND  # a button of the page before


def test_refusals():
    with pytest.raises(ConfigError, match=r"fetch\.max_bytes=0"):
        FetchOptions(max_bytes=0)
    with pytest.raises(ConfigError, match=r"fetch\.max_redirects=-1"):
        FetchOptions(max_redirects=-1)
