"""The generated websites, crawled by a program that knows nothing of how they are made."""

import collections
import html.parser
import urllib.parse

import httpx
import pytest

from sage_jax.envs.webwalker import TwinOptions, make_tasks
from sage_jax.envs.webwalker.server import SiteServer
from sage_jax.envs.webwalker.sites import SiteSpec, make_site
from sage_jax.errors import ConfigError, DataError

OPTIONS = TwinOptions(seed=5, train=2, valid=1, test=1)


class Reader(html.parser.HTMLParser):
    """Reads links, table rows and all text of a page, with the standard library alone."""

    def __init__(self, text):
        super().__init__()
        self.links, self.rows, self.words, self.heading = [], {}, [], ""
        self._open, self._cells, self._tag = None, [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a":
            self._open = [attributes.get("href"), ""]
        elif tag == "button":
            self._open = [attributes["onclick"].split("'")[1], ""]
        elif tag == "tr":
            self._cells = []
        elif tag in ("th", "td"):
            self._cells.append("")
        self._tag = tag

    def handle_endtag(self, tag):
        self._tag = ""
        if tag in ("a", "button") and self._open:
            self.links.append(tuple(self._open))
            self._open = None
        if tag == "tr" and len(self._cells) == 2:
            self.rows[self._cells[0]] = self._cells[1]

    def handle_data(self, data):
        self.words.append(data)
        if self._open:
            self._open[1] += data
        if self._tag in ("th", "td"):
            self._cells[-1] += data
        if self._tag == "h1":
            self.heading += data


def follow(client, root, trail):
    """Clicks the texts of a trail and returns the page they lead to; "text (2)" is the second target of "text"."""
    response = client.get(root)
    for step in trail:
        targets = collections.defaultdict(list)
        for target, text in Reader(response.text).links:
            address = urllib.parse.urljoin(str(response.url), target)
            if address.startswith(root) and not address.endswith(".pdf") and address not in targets[text]:
                targets[text].append(address)
        text, _, number = step.rpartition(" (")
        if step in targets:
            address = targets[step][0]
        else:
            address = targets[text][int(number.rstrip(")")) - 1]
        response = client.get(address)
        assert response.status_code == 200
    return response.text


@pytest.fixture(scope="module")
def crawl():
    server = SiteServer()
    with httpx.Client(follow_redirects=True, trust_env=False) as client:
        yield client, server
    server.close()


def test_every_golden_path_is_reachable_and_every_question_answerable_from_its_pages(crawl):
    client, server = crawl
    tasks = [task for split in make_tasks(OPTIONS).values() for task in split]
    assert len(tasks) == 4 * 6
    forms = collections.Counter()
    for task in tasks:
        payload = task.payload
        root = server.add(payload["site"])
        pages = [Reader(follow(client, root, path.split("->")[1:])) for path in payload["golden_path"]]
        year = next(word for word in "2024 2025 2026 2027".split() if word in payload["question"])
        assert all(any(year in text for text in page.words) for page in pages)
        values = [page.rows[payload["attribute"]] for page in pages]
        if payload["form"] == "total":
            derived = str(sum(int(value) for value in values))
        elif payload["form"] == "larger":
            assert all(page.heading in payload["question"] for page in pages)
            assert values[0] != values[1]
            derived = max(pages, key=lambda page: int(page.rows[payload["attribute"]])).heading
        else:
            derived = "; ".join(values)
        assert derived == payload["answer"], task.id
        forms[payload["form"], payload["difficulty"]] += 1
    assert {form for form, _ in forms} == {"single", "both", "total", "larger"}
    assert {difficulty for _, difficulty in forms} == {"easy", "medium", "hard"}


def test_sites_hold_what_a_walker_may_fall_for(crawl):
    client, server = crawl
    spec = SiteSpec("education", "en", 5, 1)
    root = server.add(spec)
    home = Reader(client.get(root).text)
    assert "https://elsewhere.example/" in [target for target, _ in home.links]
    section = Reader(client.get(urllib.parse.urljoin(root, "s0/")).text)
    gone = next(target for target, text in section.links if text == "Old timetable")
    assert client.get(urllib.parse.urljoin(f"{root}s0/", gone)).status_code == 404
    with pytest.raises(httpx.TooManyRedirects):
        client.get(urllib.parse.urljoin(root, "loop-a"))
    group = Reader(client.get(urllib.parse.urljoin(root, "s0/g1/")).text)
    assert [text for _, text in group.links].count("Read more") == 2
    site = make_site(spec)
    item = site.items[-1]
    old = Reader(client.get(urllib.parse.urljoin(root, f"archive/{len(site.items) - 1}.html")).text)
    assert old.heading == item.name
    assert list(old.rows.values()) != list(item.facts.values())
    other = client.get(urllib.parse.urljoin(root, "other.html"))
    assert 'lang="de"' in other.text
    assert any(resource.location.endswith(".html") for resource in site.resources.values())


def test_a_site_depends_on_its_spec_alone():
    spec = SiteSpec("game", "zh", 1, 4)
    assert make_site(spec) == make_site(spec)
    assert make_site(spec).resources != make_site(SiteSpec("game", "zh", 1, 5)).resources
    assert make_tasks(OPTIONS) == make_tasks(OPTIONS)


def test_splits_share_no_site_and_seeds_no_value():
    tasks = make_tasks(OPTIONS)
    keys = {split: {str(task.payload["site"]) for task in tasks[split]} for split in tasks}
    assert not keys["train"] & keys["test"]
    assert not keys["train"] & keys["valid"]
    first, second = (make_site(SiteSpec("game", "en", seed, 0)) for seed in (0, 1))
    assert [item.facts for item in first.items] != [item.facts for item in second.items]


def test_refusals():
    with pytest.raises(ConfigError, match="kinds contains 'shop'"):
        TwinOptions(kinds=("shop",))
    with pytest.raises(ConfigError, match="train=-1"):
        TwinOptions(train=-1)
    with pytest.raises(DataError, match="expected kind, lang"):
        SiteSpec.read({"kind": "game"})
    with pytest.raises(DataError, match="languages en, de"):
        SiteSpec.read({"kind": "game", "lang": "it", "seed": 0, "index": 0})
