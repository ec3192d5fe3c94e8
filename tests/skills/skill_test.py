"""Normal forms of skill texts, and what importing the package costs."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from sage_jax.skills.skill import normalise_space, normalise_words


def test_normal_forms_by_hand():
    assert normalise_space("  open\n the \t box ") == "open the box"
    assert normalise_space("a\ud800b") == "a?b"
    assert normalise_words("  Open the box, FIRST! ") == "open the box first"
    assert normalise_words("...") == ""


@given(st.text(alphabet=st.characters(codec=None)))
def test_normal_forms_are_stable_and_encodable(text):
    once = normalise_space(text)
    once.encode("utf-8")
    assert normalise_space(once) == once
    assert "\n" not in once
    assert normalise_words(normalise_words(text)) == normalise_words(text)


def test_skills_and_rewards_start_without_jax():
    code = "import sys, sage_jax.skills, sage_jax.rewards; sys.exit(int(bool({'jax', 'bm25s'} & set(sys.modules))))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
