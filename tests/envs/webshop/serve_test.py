"""The shop over real HTTP: a goal played in forms, to its score."""

import contextlib
import html
import re
import socket
import threading

import httpx
import pytest
import uvicorn

from sage_jax.envs.webshop.goals import make_goal
from sage_jax.envs.webshop.serve import ShopSite


@contextlib.contextmanager
def served(site):
    """Serves a site on a free port; yields a client that follows redirects."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(site.app(), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=address, follow_redirects=True, trust_env=False, timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(twin):
    with served(ShopSite(twin, kind="synthetic", seed=3, visits=4)) as made:
        yield made


def buttons(page):
    return [html.unescape(value) for value in re.findall(r'name="click" value="([^"]*)"', page.text)]


def test_a_person_plays_a_goal_to_its_score(client, twin):
    front = client.get("/")
    assert f"400 products, {len(twin.goals('synthetic'))} goals" in front.text
    goal = make_goal(twin, "synthetic", 5, 3)
    page = client.post("/play", data={"goal": "5"})
    visit = page.url.path
    assert goal.text in html.unescape(page.text)
    assert "WebShop" not in page.text
    page = client.post(visit, data={"keywords": goal.title})
    assert goal.asin.lower() in buttons(page)
    assert "next &gt;" in page.text
    page = client.post(visit, data={"click": goal.asin.lower()})
    for value in goal.options:
        page = client.post(visit, data={"click": value})
    assert page.text.count('class="chosen ') == len(goal.options)
    assert buttons(page)[-1] == "buy now"
    page = client.post(visit, data={"click": "buy now"})
    assert "Score 1.000" in page.text
    assert f"{3 + len(goal.options)} steps" in page.text
    assert client.get(visit).text == page.text
    assert client.post(visit, data={"click": "buy now"}).text == page.text  # bought once


def test_what_is_not_on_the_page_is_no_step(client):
    page = client.post("/play", data={"goal": "1"})
    again = client.post(page.url.path, data={"click": "buy now"})
    assert again.text == page.text
    assert client.post(page.url.path, data={}).text == page.text


@pytest.mark.parametrize("goal", ["", "many", "999999", "<b>"])
def test_a_goal_that_is_not_there_is_refused(client, goal):
    answer = client.post("/play", data={"goal": goal})
    assert answer.status_code == 400
    assert "<b>" not in answer.text


def test_texts_are_escaped(client):
    page = client.post("/play", data={"goal": "1"})
    client.post(page.url.path, data={"keywords": "<script>alert(1)</script> lamp"})
    assert "<script" not in client.get(page.url.path).text


def test_old_visits_are_dropped(client):
    first = client.post("/play", data={"goal": "1"}).url.path
    assert client.get(first).url.path == first
    for _ in range(4):
        client.post("/play", data={"goal": "2"})
    assert client.get(first).url.path == "/"
    assert client.post(first, data={"click": "buy now"}).url.path == "/"
