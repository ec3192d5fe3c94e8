"""Rounds are traced when asked for, and a range that is none is refused."""

import jax.numpy as jnp
import pytest

from sage_jax.errors import ConfigError
from sage_jax.training.profile import Trace, parse_steps


def test_ranges():
    assert list(parse_steps("10:13")) == [10, 11, 12]
    assert not parse_steps("")
    for text in ("10", "3:3", "a:b", "5:2", ":4"):
        with pytest.raises(ConfigError, match=f"profile_steps='{text}': the form is first:last"):
            parse_steps(text)


def test_a_trace_of_the_rounds_asked_for(tmp_path):
    written = []
    with Trace("1:2", tmp_path) as trace:
        for number in range(3):
            trace.step(number)
            jnp.ones(3).sum().block_until_ready()
            written.append(len(list(tmp_path.rglob("*.xplane.pb"))))
    assert written == [0, 0, 1]  # written when the range is left


def test_a_run_that_ends_inside_the_range_leaves_its_trace(tmp_path):
    with Trace("0:5", tmp_path) as trace:
        trace.step(3)
    assert list(tmp_path.rglob("*.xplane.pb"))
