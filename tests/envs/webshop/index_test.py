"""Search: bm25s's own scores, ties in the order of the catalogue, no jax."""

import random
import subprocess
import sys

import bm25s
import numpy as np

from sage_jax.envs.webshop.analyser import words
from sage_jax.envs.webshop.index import K1, B, Index, build_index


def test_words_are_cut_as_lucene_cuts_them():
    assert words("The Women's Running Shoes, size 9") == [b"women", b"run", b"shoe", b"size", b"9"]
    assert words("  of the ") == []
    assert words("é" * 40) == [("é" * 40).encode()[:32]]


def test_results_are_those_of_bm25s(twin, twin_folder):
    documents = [words(twin.product(number).document) for number in range(len(twin))]
    model = bm25s.BM25(method="lucene", k1=K1, b=B)
    model.index([[word.decode() for word in document] for document in documents], show_progress=False)
    rng = random.Random(0)
    for _ in range(60):
        query = " ".join(rng.choice(twin.product(rng.randrange(len(twin))).document.split()) for _ in range(5))
        expected = model.get_scores([word.decode() for word in words(query)])
        found = list(twin.search(query))
        order = np.lexsort((np.arange(len(twin)), -expected.round(4)))[: len(found)]
        np.testing.assert_allclose(expected[found], expected[order], atol=1e-3)
        assert len(found) == min(50, int((expected > 0).sum()))


def test_ties_keep_the_order_of_the_documents(tmp_path):
    build_index(["red shoe", "blue shoe", "red shoe", "green hat"], tmp_path)
    index = Index(tmp_path, 4)
    assert index.search("red shoe", 10) == (0, 2, 1)
    assert index.search("red shoe", 2) == (0, 2)
    assert index.search("shoe", 2) == (0, 1)
    assert index.search("hats", 10) == (3,)
    assert index.search("spaceship", 10) == ()
    assert index.search("of the", 10) == ()


def test_building_and_searching_leave_jax_alone(tmp_path):
    code = (
        "import sys, pathlib; from sage_jax.envs.webshop.index import Index, build_index; "
        f"build_index(['red shoe', 'hat'], pathlib.Path({str(tmp_path)!r})); "
        f"print(Index(pathlib.Path({str(tmp_path)!r}), 2).search('hat', 5), 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1,) False"
