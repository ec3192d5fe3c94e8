import pytest

from sage_jax.sandbox import BACKENDS, Backend, probe


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each sandbox of this machine in turn."""
    reason = probe(request.param)
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return BACKENDS[request.param]


@pytest.fixture(scope="session")
def any_backend() -> Backend:
    """The first sandbox that works."""
    for name, candidate in BACKENDS.items():
        if probe(name) is None:
            return candidate
    pytest.skip("no sandbox works on this machine")
