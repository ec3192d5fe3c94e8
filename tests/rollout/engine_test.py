import subprocess
import sys

import pytest

from sage_jax.errors import ConfigError
from sage_jax.rollout import Engine, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 2.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
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


def test_importing_the_protocol_imports_no_jax():
    code = "import sys, sage_jax.rollout, sage_jax.rollout.choices; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_embedded_engine_is_an_engine():
    assert issubclass(EmbeddedEngine, Engine)
