"""What a round's episodes come to together."""

import numpy as np
import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import EngineError
from sage_jax.methods.outcomes import failures, means, require_outcome, require_round
from sage_jax.settings import RunSettings
from sage_jax.types import Status


def test_a_mean_over_nothing_is_left_out():
    assert means({"a": [1.0, 2.0], "b": [], "c": [0.0]}) == {"a": 1.5, "c": 0.0}
    rewards = list(np.random.default_rng(0).normal(size=33))
    assert means({"a": rewards})["a"] == float(np.mean(rewards))


def test_failures_name_status_and_reason(make_trajectory):
    lost = make_trajectory("g", [None], status=Status.ENV_ERROR)
    assert failures([make_trajectory(), lost]) == ["", "env_error: no reason was given"]


def test_a_round_may_lose_all_its_episodes_to_drops_that_were_asked_for(make_trajectory):
    aborted = make_trajectory("g", [None], status=Status.ABORTED)
    lost = make_trajectory("g", [None], status=Status.TIMEOUT)
    values = {"running_turns": "drop", "ahead": True, "importance_cap": 2.0}
    drop, finish = to_dataclass(values, RunSettings), to_dataclass({}, RunSettings)
    require_round([aborted, aborted], drop, 0)
    with pytest.raises(EngineError, match="round 1: none of its 2 .*aborted"):
        require_round([aborted, aborted], finish, 0)
    with pytest.raises(EngineError, match="round 1: none of its 1 .*timeout"):
        require_round([aborted, lost], drop, 0)


def test_one_outcome_is_enough_and_none_is_an_error():
    require_outcome([], "round 1")
    require_outcome(["timeout: slow", ""], "round 1")
    with pytest.raises(EngineError, match="round 1: none of its 2 episodes has.*the first one: timeout: slow"):
        require_outcome(["timeout: slow", "engine_error: gone"], "round 1")
