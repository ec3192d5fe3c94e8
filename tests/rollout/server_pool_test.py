"""The memory of failed servers, on a clock that the tests move."""

import pytest

from sage_jax.errors import ServerRefusedError, ServerUnavailableError
from sage_jax.rollout.server_pool import ServerPool

URLS = ("a", "b", "c")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pool(clock):
    return ServerPool(URLS, rest_s=1, rest_max_s=60, clock=clock)


def session_of(pool, url):
    return next(f"s{number}" for number in range(100) if pool.home(f"s{number}") == url)


def ask(pool, session, asked=None, outcome=lambda: None):
    with pool.ask(session, [] if asked is None else asked) as url:
        outcome()
        return url


def fail(pool, session, error, asked=None, during=lambda: None):
    """Asks a server that fails; returns it."""
    asked = [] if asked is None else asked

    def outcome():
        during()
        raise error

    with pytest.raises(type(error)):
        ask(pool, session, asked, outcome)
    return asked[-1]


def down(retry_after=None):
    return ServerUnavailableError("down", retry_after)


def test_a_session_keeps_its_server_while_it_works(pool):
    assert [ask(pool, session_of(pool, "b")) for _ in range(5)] == ["b"] * 5


def test_a_failed_server_rests_and_its_sessions_go_to_the_next_one(pool, clock):
    session = session_of(pool, "a")
    assert fail(pool, session, down()) == "a"
    assert [ask(pool, session), ask(pool, session_of(pool, "c"))] == ["b", "c"]
    clock.now += 1
    assert ask(pool, session) == "a"  # its rest is over
    assert not pool.is_failing("a")


def test_rests_double_up_to_a_minute(pool, clock):
    session, rests = session_of(pool, "a"), []
    for _ in range(8):
        assert fail(pool, session, down()) == "a"
        began = clock.now
        while pool._rests_now("a"):
            clock.now += 0.5
        rests.append(clock.now - began)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_server_rests_as_long_as_it_hung(pool, clock):
    session = session_of(pool, "a")

    def hang():
        clock.now += 20

    fail(pool, session, down(), during=hang)
    clock.now += 19.5
    assert ask(pool, session) == "b"
    clock.now += 0.5
    assert ask(pool, session) == "a"


def test_one_request_tries_a_server_that_has_rested(pool, clock):
    session = session_of(pool, "a")
    fail(pool, session, down())
    clock.now += 100
    with pool.ask(session, []) as url:
        assert url == "a"
        clock.now += 1000  # however long it takes
        assert ask(pool, session) == "b"
    assert ask(pool, session) == "a"


def test_a_trial_that_was_cancelled_leaves_the_next_one_free(pool, clock):
    session = session_of(pool, "a")
    fail(pool, session, down())
    clock.now += 1
    assert fail(pool, session, KeyboardInterrupt()) == "a"
    assert pool.is_failing("a")  # nothing was learnt
    assert ask(pool, session) == "a"


def test_many_turns_that_fail_together_are_one_failure(pool, clock):
    session = session_of(pool, "a")

    def others_fail():
        for _ in range(5):
            pool.failed("a", began)

    began = clock.now
    fail(pool, session, down(), during=lambda: (setattr(clock, "now", clock.now + 0.5), others_fail()))
    clock.now += 1
    assert ask(pool, session) == "a"


def test_a_server_that_says_when_to_come_back_is_no_failed_one(pool):
    session, asked = session_of(pool, "a"), []
    fail(pool, session, down(retry_after=1.0), asked)
    assert not pool.is_failing("a")
    assert ask(pool, session, asked) == "b"  # the same turn asks another; the session stays
    assert ask(pool, session) == "a"


def test_a_refusal_is_an_answer(pool, clock):
    session = session_of(pool, "a")
    fail(pool, session, down())
    clock.now += 1
    fail(pool, session, ServerRefusedError("400"))
    assert not pool.is_failing("a")


def test_when_all_rest_a_turn_asks_them_in_turn(pool):
    for url in URLS:
        fail(pool, session_of(pool, url), down())
    asked = []
    for _ in range(6):
        fail(pool, session_of(pool, "b"), down(), asked)
    assert asked == ["b", "c", "a", "b", "c", "a"]
