"""Beginnings of contexts that are copied from slot to slot: the same bits, and nothing is prefilled twice."""

import asyncio

from tests.rollout.conftest import prompt, run, same, turn


def test_a_copied_beginning_gives_the_same_bits_as_a_prefilled_one(engine):
    shared = prompt(1, 70)
    group = [turn(n, ids=shared if n < 4 else shared[:61] + prompt(n, n), max_new_tokens=12) for n in range(8)]
    alone = []
    for request in group:
        alone += run(engine, request)
        asyncio.run(engine.end_session(request.session))
    before = engine.stats()
    together = run(engine, *group)
    after = engine.stats()
    assert same(alone, together)
    assert [result.cached_tokens for result in alone] == [0] * 8
    assert sorted(result.cached_tokens for result in together) == [0, *[61] * 4, *[69] * 3]
    # The beginning is prefilled once, then the last tokens of the four that depart from it: 3 to 6 of them.
    assert after["prefilled_tokens"] - before["prefilled_tokens"] == 69 + 3 + 4 + 5 + 6
    assert after["copied_tokens"] - before["copied_tokens"] == 3 * 69 + 4 * 61


def test_a_beginning_is_copied_from_a_session_that_waits(engine):
    (first,) = run(engine, turn(1, session="first", length=70))
    (second,) = run(engine, turn(2, session="second", ids=prompt(1, 70) + prompt(2, 9)))
    assert (first.cached_tokens, second.cached_tokens) == (0, 69)


def test_who_waits_for_a_beginning_goes_on_when_the_other_is_cancelled(engine):
    (alone,) = run(engine, turn(2, ids=prompt(1, 190)))
    asyncio.run(engine.end_session("session-2"))

    async def cancel_the_first():
        first, second = (
            asyncio.create_task(engine.generate(turn(n, session=f"w{n}", ids=prompt(1, 190)))) for n in (1, 2)
        )
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert same([alone], [asyncio.run(cancel_the_first())])
