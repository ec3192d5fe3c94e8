import asyncio
import dataclasses

import jax
import numpy as np
import pytest

from sage_jax.errors import ConfigError, EngineError
from sage_jax.rollout import GenerateRequest, VersionSpan
from tests.rollout.conftest import CONFIG, draw_params, full_logits, prompt, run, same, turn

# What a turn is.


def test_greedy_turn_is_argmax_of_the_full_forward_pass(engine, params):
    (result,) = run(engine, turn(1, length=40, max_new_tokens=21, temperature=0.0))
    ids = list(prompt(1, 40))
    for token in result.ids:
        logits = full_logits(params, ids)[-1]
        assert token == int(np.argmax(logits))
        ids.append(token)
    assert len(result.ids) == 21


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_k": 5, "top_p": 0.8}], ids=str
)
def test_logprobs_equal_rescoring_by_the_full_forward_pass(engine, params, sampling):
    requests = [turn(n, length=5 + 37 * n, max_new_tokens=19, **sampling) for n in range(4)]
    for request, result in zip(requests, run(engine, *requests), strict=True):
        logits = full_logits(params, request.ids + result.ids)[len(request.ids) - 1 : -1]
        logits = logits / (request.sampling.temperature or 1.0)
        expected = jax.nn.log_softmax(logits)[np.arange(19), np.array(result.ids)]
        np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)
        assert all(drawn >= whole - 1e-6 for drawn, whole in zip(result.sampled_logprobs, result.logprobs, strict=True))


def test_a_slot_that_decodes_in_a_row_of_its_own_gives_the_same_turns(new_engine, params):
    engine = new_engine(config=dataclasses.replace(CONFIG, num_slots=1, decode_rows=1))
    requests = [turn(n, length=30 + 20 * n, max_new_tokens=9, temperature=0.0) for n in range(3)]
    for request, result in zip(requests, run(engine, *requests), strict=True):
        logits = full_logits(params, request.ids + result.ids)[len(request.ids) - 1 : -1]
        assert result.ids == tuple(np.argmax(logits, axis=-1).tolist())
        np.testing.assert_allclose(result.logprobs, np.max(jax.nn.log_softmax(logits), axis=-1), rtol=0, atol=1e-4)


def test_a_one_token_context_can_be_continued(engine, params):
    (result,) = run(engine, turn(1, ids=(5,), temperature=0.0, max_new_tokens=1))
    assert result.ids == (int(np.argmax(full_logits(params, (5,))[-1])),)


def test_a_stop_id_ends_the_turn_and_stays_in_it(engine):
    (free,) = run(engine, turn(1, max_new_tokens=15))
    stop = free.ids[6]
    first = free.ids.index(stop)
    (result,) = run(engine, turn(1, session="again", max_new_tokens=15, stop_token_ids=(95 - stop, stop)))
    cut = min(index for index, token in enumerate(free.ids) if token in (stop, 95 - stop))
    assert cut <= first
    assert result.ids == free.ids[: cut + 1]
    assert result.logprobs == free.logprobs[: cut + 1]
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_max_new_tokens_ends_the_turn(engine, count):
    (result,) = run(engine, turn(1, max_new_tokens=count))
    assert (len(result.ids), result.finish_reason) == (count, "length")


@pytest.mark.parametrize(("length", "expected"), [(197, 3), (199, 1), (200, 0), (450, 0)])
def test_a_full_context_ends_the_turn_without_an_error(engine, length, expected):
    (result,) = run(engine, turn(1, length=length, max_new_tokens=10))
    assert (len(result.ids), result.finish_reason, result.prompt_tokens) == (expected, "length", length)


def test_a_turn_up_to_the_last_position_leaves_its_neighbours_alone(engine):
    victims = [turn(n, max_new_tokens=40) for n in range(2, 5)]
    alone = run(engine, *victims)
    beside = run(
        engine,
        turn(1, length=180, max_new_tokens=100),
        *[turn(n, session=f"b{n}", max_new_tokens=40) for n in range(2, 5)],
    )
    assert same(alone, beside[1:])
    assert len(beside[0].ids) == 20


# What a turn does not depend on.


@pytest.mark.parametrize("neighbours", [1, 2, 31])
def test_tokens_do_not_depend_on_neighbours(engine, neighbours):
    sampling = {"max_new_tokens": 30, "top_p": 0.9}
    alone = run(engine, turn(1, length=50, **sampling))
    others = [
        turn(100 + n, length=3 + 5 * n, max_new_tokens=1 + n, temperature=0.5 + 0.1 * n) for n in range(neighbours)
    ]
    beside = run(engine, *others, turn(1, session="beside", length=50, **sampling))
    assert same(alone, beside[-1:])


def test_tokens_do_not_depend_on_order_slot_or_waiting_for_a_slot(engine, new_engine):
    requests = [turn(n, length=2 + 4 * n, max_new_tokens=12) for n in range(40)]
    one_by_one = [run(engine, request)[0] for request in requests]
    other = new_engine()
    assert same(one_by_one, run(other, *reversed(requests))[::-1])
    assert other.stats()["evictions"] > 0


def test_late_arrivals_change_nothing(engine):
    requests = [turn(n, length=60, max_new_tokens=50) for n in range(3)]
    together = run(engine, *requests)

    async def staggered():
        tasks = []
        for request in requests:
            before = engine.stats()["generated_tokens"]
            tasks.append(
                asyncio.create_task(
                    engine.generate(GenerateRequest("late", f"late-{request.session}", request.ids, request.sampling))
                )
            )
            while engine.stats()["generated_tokens"] < before + 8:
                await asyncio.sleep(0.001)
        return await asyncio.gather(*tasks)

    assert same(together, asyncio.run(staggered()))


def test_tokens_do_not_depend_on_what_is_cached(engine, new_engine):
    ids, cached, restarted = prompt(1, 21), [], new_engine()
    for number in range(5):
        request = turn(number, session="kept", ids=ids, seed=1000 + number, max_new_tokens=9)
        kept, fresh = run(engine, request), run(restarted, request)
        assert same(kept, fresh)
        assert fresh[0].cached_tokens == 0
        asyncio.run(restarted.end_session("kept"))
        cached.append(kept[0].cached_tokens)
        ids += kept[0].ids + prompt(50 + number, 7 + 3 * number)
    # Everything but the last token of each earlier prompt: 21, then 9 sampled and 7, 10, 13, 16 new ones a turn.
    assert cached == [0, 20, 36, 55, 77]


def test_a_session_that_waits_for_its_environment_holds_up_no_other(engine):
    (first,) = run(engine, turn(1, session="waits", length=60))

    async def others():
        async def episode(number):
            ids = prompt(number, 30)
            for step in range(4):
                result = await engine.generate(turn(10 * number + step, session=f"other-{number}", ids=ids))
                ids += result.ids + prompt(step, 5)
            return len(ids)

        return await asyncio.gather(*(episode(number) for number in range(2, 18)))

    assert asyncio.run(others()) == [30 + 4 * 15] * 16
    (second,) = run(engine, turn(3, session="waits", ids=prompt(1, 60) + first.ids + prompt(5, 8)))
    assert second.cached_tokens == 59


def test_the_same_seed_repeats_and_another_differs(engine):
    first, again, other = run(
        engine,
        turn(1, max_new_tokens=20),
        turn(1, session="b", max_new_tokens=20),
        turn(1, session="c", seed=2, max_new_tokens=20),
    )
    assert same([first], [again])
    assert first.ids != other.ids


# Sessions.


def test_a_session_prefills_only_its_new_tokens(engine):
    before = engine.stats()
    (first,) = run(engine, turn(1, session="episode", length=60))
    ids = prompt(1, 60) + first.ids + prompt(2, 15)
    (second,) = run(engine, turn(2, session="episode", ids=ids))
    after = engine.stats()
    assert (first.cached_tokens, second.cached_tokens) == (0, 59)
    assert after["prefilled_tokens"] - before["prefilled_tokens"] == len(ids) - 1
    assert after["cached_tokens"] - before["cached_tokens"] == 59


def test_a_context_that_departs_from_the_session_is_prefilled_from_there(engine):
    run(engine, turn(1, session="episode", length=40))
    ids = prompt(1, 40)[:25] + prompt(9, 30)
    departed = run(engine, turn(2, session="episode", ids=ids))
    assert departed[0].cached_tokens in (25, 26)  # 26 when the first other token happens to be the same
    assert same(departed, run(engine, turn(2, session="fresh", ids=ids)))


def test_an_ended_or_evicted_session_starts_over(engine):
    (first,) = run(engine, turn(1, session="ended"))
    asyncio.run(engine.end_session("ended"))
    asyncio.run(engine.end_session("never seen"))
    (again,) = run(engine, turn(1, session="ended"))
    assert again.cached_tokens == 0
    run(engine, *[turn(n, max_new_tokens=1) for n in range(100, 117)])
    (evicted,) = run(engine, turn(1, session="ended"))
    assert evicted.cached_tokens == 0
    assert same([first, first], [again, evicted])


def test_a_session_has_one_turn_at_a_time(engine):
    async def both():
        requests = (turn(n, session="one", max_new_tokens=40) for n in (1, 2))
        return await asyncio.gather(*(engine.generate(request) for request in requests), return_exceptions=True)

    first, second = asyncio.run(both())
    assert len(first.ids) == 40
    assert isinstance(second, EngineError)
    assert "already has a turn" in str(second)


def test_a_cancelled_turn_leaves_its_slot(engine):
    async def cancel():
        task = asyncio.create_task(engine.generate(turn(1, session="gone", max_new_tokens=150)))
        while not engine.stats()["running"]:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.end_session("gone")

    asyncio.run(cancel())
    assert engine.stats()["running"] == 0
    assert len(run(engine, turn(1, session="gone"))[0].ids) == 10


# Choices.


def test_choices_are_followed_to_the_end_and_the_turn_stops(engine):
    choices = ((1, 2, 3), (1, 4), (5, 6, 7, 8), (90,))
    results = run(engine, *[turn(n, choices=choices) for n in range(16)])
    assert {result.ids for result in results} <= set(choices)
    assert len({result.ids for result in results}) > 1
    assert {result.finish_reason for result in results} == {"stop"}


def test_choices_report_both_distributions(engine, params):
    choices = ((1, 2), (1, 4), (5, 6))
    (result,) = run(engine, turn(3, choices=choices, temperature=0.7))
    ids = prompt(3, 20)
    expected, restricted = [], []
    for token, allowed in zip(result.ids, ([1, 5], [2, 4] if result.ids[0] == 1 else [6]), strict=True):
        logits = full_logits(params, ids)[-1] / 0.7
        expected.append(float(jax.nn.log_softmax(logits)[token]))
        restricted.append(float(jax.nn.log_softmax(logits[np.array(allowed)])[allowed.index(token)]))
        ids += (token,)
    np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)
    np.testing.assert_allclose(result.sampled_logprobs, restricted, atol=1e-4)


def test_choices_of_one_request_leave_the_others_alone(engine):
    free = [turn(n, max_new_tokens=20) for n in range(3)]
    alone = run(engine, *free)
    choice = turn(9, choices=((1, 2, 3, 4, 5, 6, 7), (8, 9)))
    (choice_alone,) = run(engine, choice)
    mixed = run(
        engine,
        turn(9, session="m", choices=choice.sampling.choices),
        *[turn(n, session=f"m{n}", max_new_tokens=20) for n in range(3)],
    )
    assert same([choice_alone, *alone], mixed)


# Weights.


def test_new_weights_are_used_and_old_keys_dropped(engine, new_engine):
    old_version, weights = engine.stats()["weight_version"], draw_params(1)
    (before,) = run(engine, turn(1, session="episode"))
    engine.update_weights(weights, old_version + 1)
    after = run(engine, turn(1, session="episode"))
    assert after[0].cached_tokens == 0
    assert (before.weight_version, after[0].weight_version) == (old_version, old_version + 1)
    assert after[0].weight_versions == (VersionSpan(old_version + 1, 0, 10),)
    assert before.ids != after[0].ids
    assert [result.ids for result in after] == [result.ids for result in run(new_engine(weights), turn(1))]


def test_weights_of_another_dtype_are_cast(engine, params):
    version, compiled = (engine.stats()[name] for name in ("weight_version", "compilations"))
    engine.update_weights(jax.tree.map(lambda leaf: np.asarray(leaf, np.float16), params), version + 1)
    assert len(run(engine, turn(1))[0].ids) == 10
    assert engine.stats()["compilations"] == compiled


def test_the_engine_keeps_its_own_copy_of_the_weights(new_engine):
    weights = draw_params(0)
    engine = new_engine(weights)
    jax.tree.map(lambda leaf: leaf.delete(), weights)
    assert len(run(engine, turn(1))[0].ids) == 10


def test_an_update_is_refused_while_turns_run_or_marked(engine, params):
    version = engine.stats()["weight_version"]

    async def update_in_mid_turn(running):
        start = engine.stats()["generated_tokens"]
        task = asyncio.create_task(engine.generate(turn(1, session=running, max_new_tokens=150)))
        while engine.stats()["generated_tokens"] == start:
            await asyncio.sleep(0.001)
        try:
            engine.update_weights(params, version + 1, running=running)
        finally:
            result = await task
        return result

    with pytest.raises(EngineError, match="1 turns run"):
        asyncio.run(update_in_mid_turn("refuse"))
    result = asyncio.run(update_in_mid_turn("continue"))
    first, second = result.weight_versions
    assert (first.version, first.start, first.end) == (version, 0, second.start)
    assert (second.version, second.end, result.weight_version) == (version + 1, 150, version + 1)
    (again,) = run(engine, turn(1, session="continue"))
    assert again.cached_tokens == 0
    version += 1
    result = asyncio.run(update_in_mid_turn("abort"))
    assert result.finish_reason == "abort"
    assert 0 < len(result.ids) < 150
    assert (result.weight_version, engine.stats()["weight_version"]) == (version, version + 1)
    assert {span.version for span in result.weight_versions} == {version}


def test_a_turn_in_prefill_starts_anew_on_new_weights(new_engine):
    engine, weights = new_engine(), draw_params(1)
    new, prefill = engine._own_copy(weights), engine._prefill

    def prefill_and_update(pieces):
        prefill(pieces)
        if engine._version == 0:
            engine._replace_weights(new, 1, "continue")

    engine._prefill = prefill_and_update  # in the driver's own thread: no turn has a token yet
    results = run(engine, *(turn(n) for n in range(3)))
    assert all(result.weight_versions == (VersionSpan(1, 0, 10),) for result in results)
    alone = run(new_engine(weights), *(turn(n) for n in range(3)))
    assert [(result.ids, result.logprobs) for result in results] == [(one.ids, one.logprobs) for one in alone]


def test_warm_up_is_refused_while_turns_run_or_wait(engine):
    # It clears a slot: turns on it would go on with wrong tokens.
    (alone,) = run(engine, turn(1, max_new_tokens=150))

    async def warm_up_in_mid_turn():
        await engine.end_session("session-1")
        task = asyncio.create_task(engine.generate(turn(1, max_new_tokens=150)))
        before = engine.stats()["generated_tokens"]
        while engine.stats()["generated_tokens"] == before:
            await asyncio.sleep(0)
        with pytest.raises(EngineError, match="warm up.*1 turns run and 0 wait"):
            await asyncio.to_thread(engine.warmup)
        return await task

    assert same([asyncio.run(warm_up_in_mid_turn())], [alone])
    engine.warmup()


def test_unfit_weights_are_refused(engine, params):
    version = engine.stats()["weight_version"]
    with pytest.raises(EngineError, match="embed.*has shape \\(5, 32\\)"):
        engine.update_weights({**params, "embed": params["embed"][:5]}, version + 1)
    with pytest.raises(EngineError, match=f"version {version}"):
        engine.update_weights(params, version)
    with pytest.raises(ConfigError, match="running='sometimes'"):
        engine.update_weights(params, version + 1, running="sometimes")
    engine.health()


# Failure and compilation.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": (1, 96)}, "ids has id 96"),
        ({"ids": (-1, 2)}, "ids has id -1"),
        ({"stop_token_ids": (400,)}, "stop_token_ids has id 400"),
        ({"stop_token_ids": tuple(range(9))}, "max_stop_ids=8"),
        ({"choices": ((1, 2), (3, 99))}, "choices\\[1\\] has id 99"),
    ],
)
def test_unusable_requests_are_refused(engine, options, message):
    with pytest.raises(EngineError, match=message):
        run(engine, turn(1, **options))


def test_empty_ids_are_refused(engine):
    with pytest.raises(EngineError, match="empty"):
        run(engine, GenerateRequest("r", "s", (), turn(1).sampling))


def test_logits_that_are_not_finite_fail_the_turn_and_leave_no_trace(new_engine, params):
    engine = new_engine()
    (good,) = run(engine, turn(1))
    broken = jax.tree.map(lambda leaf: leaf * np.nan, params)
    engine.update_weights(broken, 1)
    with pytest.raises(EngineError, match="not finite at version 1"):
        run(engine, *[turn(n) for n in range(17)])
    engine.update_weights(params, 2)
    results = run(engine, *[turn(1, session=f"again {n}") for n in range(17)])
    assert {result.ids for result in results} == {good.ids}
    assert {result.logprobs for result in results} == {good.logprobs}


def test_a_driver_failure_reaches_everyone_who_waits(new_engine):
    engine = new_engine()

    def broken(*_):
        raise RuntimeError("the device is gone")

    engine._programs = engine._programs._replace(decode=broken)

    async def gather():
        requests = (turn(n) for n in range(20))
        return await asyncio.gather(*(engine.generate(request) for request in requests), return_exceptions=True)

    results = asyncio.run(gather())
    assert all(isinstance(result, EngineError) and "the device is gone" in str(result) for result in results)
    with pytest.raises(EngineError, match="the device is gone"):
        engine.health()
    with pytest.raises(EngineError, match="the device is gone"):
        run(engine, turn(1))


def test_closing_answers_everyone_and_joins_the_thread(new_engine):
    engine = new_engine()

    async def close_in_mid_turn():
        task = asyncio.create_task(engine.generate(turn(1, max_new_tokens=150)))
        while not engine.stats()["running"]:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError, match="closed"):
            await task

    asyncio.run(close_in_mid_turn())
    assert not engine._thread.is_alive()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        run(engine, turn(1))


def test_nothing_is_compiled_after_warm_up(engine, params):
    events = []

    def listen(event, duration, **_):
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        requests = [
            turn(n, length=1 + 9 * n, max_new_tokens=1 + n, top_k=n % 3, stop_token_ids=(n,)) for n in range(20)
        ]
        run(engine, *requests, turn(50, choices=((1, 2), (3,))))
        engine.update_weights(params, engine.stats()["weight_version"] + 1)
        run(engine, *requests)
        assert "/jax/core/compile/backend_compile_duration" not in events
        jax.jit(lambda x: x + 1)(1.0)
        assert "/jax/core/compile/backend_compile_duration" in events  # the listener does hear of compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
