import subprocess
import sys

import pytest

from sage_jax.errors import ConfigError
from sage_jax.rollout import Engine, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.engine import find_outside, is_int


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 2.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", 1e-30),
        ("temperature", "1"),
        ("top_p", None),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 2**63),
        ("stop_token_ids", (-1,)),
        ("choices", ()),
        ("choices", ((),)),
        ("choices", ((1, 2), (1, 2, 3))),
        ("choices", ((1, 2), (1, 2))),
        ("choices", ((1, 2, 3, 4, 5, 6),)),
    ],
)
def test_sampling_params_name_the_field_that_is_wrong(field, value):
    with pytest.raises(ConfigError, match=field):
        SamplingParams(**{"max_new_tokens": 5} | {field: value})


def test_sampling_params_turn_lists_into_tuples():
    sampling = SamplingParams(max_new_tokens=5, stop_token_ids=[3], choices=[[1, 2], [4]])
    assert sampling.stop_token_ids == (3,)
    assert sampling.choices == ((1, 2), (4,))
    hash(sampling)


def test_truth_is_no_whole_number():
    assert [is_int(value) for value in (0, -3, 2**70, True, False, 1.0, "1", None)] == [True] * 3 + [False] * 5


def test_the_first_id_outside_of_the_vocabulary_is_named():
    assert find_outside(10, ids=(0, 9), stops=()) == ""
    assert find_outside(10, ids=(0, 9), stops=(3, 10, 11)) == "stops has id 10, outside 0 to 9"
    assert find_outside(10, ids=(-1,)) == "ids has id -1, outside 0 to 9"


def test_importing_the_protocol_imports_no_jax():
    code = "import sys, sage_jax.rollout, sage_jax.rollout.choices; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_embedded_engine_is_an_engine():
    assert issubclass(EmbeddedEngine, Engine)
