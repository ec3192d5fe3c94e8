"""Giving up what takes far longer than the others, by the loop's own clock and without waiting for it."""

import asyncio

import pytest

from sage_jax.agents.gathering import StragglerError, Stragglers, map_some


class FastLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer instead of sleeping."""

    def __init__(self):
        super().__init__()
        self._now = 0.0

    def time(self):
        return self._now

    def _run_once(self):
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()


def run(delays, factor, *, concurrency=99, parts=None, failing=()):
    """Returns (what became of each, when it ended)."""

    async def one(number):
        try:
            async with stragglers.limit(parts[number] if parts else ""):
                await asyncio.sleep(delays[number])
                if number in failing:
                    raise ZeroDivisionError
        except StragglerError as error:
            return str(error), round(asyncio.get_running_loop().time(), 6)
        except ZeroDivisionError:
            return "failed", round(asyncio.get_running_loop().time(), 6)
        return "over", round(asyncio.get_running_loop().time(), 6)

    async def every():
        return await map_some(one, range(len(delays)), concurrency=concurrency)

    stragglers = Stragglers(factor, len(delays))
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(every())


def test_one_that_takes_too_many_medians_is_ended_then_and_no_other():
    ends = run([1, 2, 3, 100], 3.0)  # median of 1, 2, 3
    assert ends[:3] == [("over", 1), ("over", 2), ("over", 3)]
    assert ends[3] == ("longer than straggler_factor=3.0 times the median of 2 s of the others", 6)
    assert run([1, 2, 3, 5.9], 3.0)[3] == ("over", 5.9)


def test_it_is_ended_at_once_where_it_has_taken_as_long_already():
    assert [end for _, end in run([1, 1, 1, 1, 1, 30, 50, 60], 4.0)] == [1] * 5 + [30, 30, 30]


def test_a_factor_of_zero_waits():
    assert run([1, 1, 1, 1, 500], 0.0)[4] == ("over", 500)


def test_time_is_counted_from_the_beginning_of_each():
    ends = run([2, 2, 2, 2, 2, 2, 2, 7], 3.0, concurrency=1)
    assert ends[7][1] == 14 + 6


def test_those_that_fail_are_not_counted_as_over():
    assert run([0.1, 0.1, 9, 100], 2.0, failing=(0, 1))[3] == ("over", 100)


def test_parts_are_measured_apart():
    delays, parts = [1] * 6 + [20, 20], ["play"] * 6 + ["review"] * 2
    assert run(delays, 2.0, parts=parts)[6:] == [("over", 20)] * 2


def test_another_timeout_stays_one():
    async def slow():
        async with Stragglers(2.0, 1).limit():
            async with asyncio.timeout(1):
                await asyncio.sleep(5)

    with asyncio.Runner(loop_factory=FastLoop) as runner, pytest.raises(TimeoutError) as caught:
        runner.run(slow())
    assert caught.type is TimeoutError
