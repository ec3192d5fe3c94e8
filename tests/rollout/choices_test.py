import numpy as np
import pytest

from sage_jax.errors import EngineError
from sage_jax.rollout.choices import ChoiceTrie, fill_mask


def test_trie_gives_the_ids_that_may_follow():
    trie = ChoiceTrie([(1, 2, 3), (1, 4), (5,)])
    assert set(trie.allowed(())) == {1, 5}
    assert set(trie.allowed((1,))) == {2, 4}
    assert trie.allowed((1, 2)) == (3,)


def test_a_complete_choice_is_followed_by_nothing():
    trie = ChoiceTrie([(1, 2, 3), (1, 4)])
    assert trie.allowed((1, 4)) == ()
    assert trie.allowed((1, 2, 3)) == ()


def test_leaving_the_choices_is_an_error():
    with pytest.raises(EngineError, match="token 9"):
        ChoiceTrie([(1, 2)]).allowed((1, 9))


def test_fill_mask_overwrites_the_row():
    mask = np.ones(6, bool)
    fill_mask(mask, (1, 4))
    assert mask.tolist() == [False, True, False, False, True, False]
