import logging

import pytest

from sage_jax.errors import ConfigError, SandboxError
from sage_jax.sandbox import backends, choose


class Gone:
    name = "gone"

    def missing(self) -> str | None:
        return "it is gone; bring it back"


class Mute(backends.Unsafe):
    """Starts something that is no sandbox."""

    name = "mute"

    def start(self, command, limits, access):
        return super().start(["/bin/true"], limits, access)


@pytest.fixture
def only_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choose, "BACKENDS", {"gone": Gone(), "mute": Mute()})
    choose.probe.cache_clear()
    yield
    choose.probe.cache_clear()


def test_the_first_that_works_is_chosen(any_backend):
    assert choose.choose_backend() is any_backend
    assert choose.choose_backend(any_backend.name) is any_backend


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'bubblewrap'"):
        choose.choose_backend("bubblewarp")


@pytest.mark.usefixtures("only_broken")
def test_none_refuses_and_says_what_to_do():
    with pytest.raises(SandboxError) as error:
        choose.choose_backend()
    for part in ("gone: it is gone; bring it back", "mute: a first program did not run in it", "--unsafe_no_sandbox"):
        assert part in str(error.value)


@pytest.mark.usefixtures("only_broken")
def test_the_unsafe_way_is_loud(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        backend = choose.choose_backend(unsafe_no_sandbox=True)
    assert backend.name == "none (UNSAFE)"
    assert "RUNNING WITHOUT A SANDBOX" in caplog.text


def test_the_unsafe_way_is_not_taken_where_a_sandbox_works(any_backend):
    assert choose.choose_backend(unsafe_no_sandbox=True) is any_backend
