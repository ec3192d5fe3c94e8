import pytest

from sage_jax.errors import ConfigError
from sage_jax.sandbox import Access, Limits


@pytest.mark.parametrize("name", ["wall_s", "cpu_s", "memory_mb", "processes", "output_kb", "disk_mb", "open_files"])
def test_a_limit_is_above_zero(name: str):
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        Limits(**{name: 0})


def test_a_path_is_absolute_and_exists():
    with pytest.raises(ConfigError, match="'here' is relative"):
        Access(readable=("here",))
    with pytest.raises(ConfigError, match="'/not/there' does not exist"):
        Access(writable=("/not/there",))
