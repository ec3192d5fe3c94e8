"""What tests of several packages share: the base model's tokenizer and one small generated game of each family."""

import pytest

from sage_jax.data.base_corpus import corpus_words
from sage_jax.data.tasks import AlfworldSource, load_tasks
from sage_jax.data.word_tokenizer import build_tokenizer

GAMES = {"seed": 3, "train": 1, "valid_seen": 0, "valid_unseen": 0}
SMALL = {"max_receptacles": 8, "min_objects": 3, "max_objects": 6}


@pytest.fixture(scope="session")
def word_tokenizer():
    """The tokenizer of the small base model."""
    return build_tokenizer(corpus_words(), 1024)


@pytest.fixture(scope="session")
def household_games(tmp_path_factory):
    """One small training game of each of the six families."""
    cache = str(tmp_path_factory.mktemp("household"))
    source = AlfworldSource("generated", cache, ("train",), games=GAMES | SMALL, processes=0)
    return load_tasks(source)["train"]
