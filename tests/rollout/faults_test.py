"""Servers that misbehave: each fault has its typed error, and a round loses no episode and plays none twice.

A round here is a few episodes of a few turns on a real (faulty) HTTP server. What an episode got is compared with what
a faultless server gives, token for token: a lost, doubled or foreign turn would differ.
"""

import asyncio
import threading
import time

import pytest

from sage_jax.errors import (
    ConfigError,
    EngineError,
    ServerProtocolError,
    ServerRefusedError,
    ServerUnavailableError,
    StaleWeightsError,
)
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.http_client import HttpOptions
from sage_jax.rollout.sglang import SglangEngine
from sage_jax.testing.faulty_server import FAULTS, VOCAB_SIZE, FaultyServer, turn_ids
from sage_jax.testing.server_process import ServerProcess

TURNS, TOKENS = 3, 5
PASSING = ("429", "500", "hang", "slow_loris", "reset", "cut_short")  # another attempt may help
SILENT = ("hang", "slow_loris")  # noticed by the clock alone
BROKEN = (
    "truncated_json",
    "deep_json",
    "long_number",
    "bad_gzip",
    "missing_meta",
    "too_few_logprobs",
    "too_many_ids",
    "no_ids",
    "nan_logprob",
    "positive_logprob",
    "null_logprob",
    "other_id",
    "id_outside",
    "wrong_prompt_tokens",
    "span_gap",
    "unknown_reason",
)


@pytest.fixture
def server():
    with FaultyServer() as made:
        yield made


@pytest.fixture
def engine_of(tmp_path):
    """Makes clients that give up soon, closed after the test."""
    made = []

    def make(*urls, **options):
        defaults = {"timeout_s": 20, "attempts": 3, "wait_s": 0.01, "wait_max_s": 0.05}
        engine = SglangEngine(
            HttpOptions(urls, **{**defaults, **options}),
            vocab_size=VOCAB_SIZE,
            max_length=1000,
            write_weights=lambda params, version: tmp_path / str(version),
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def turn(session="episode", number=0, context=(1, 2, 3), seed=7):
    return GenerateRequest(f"{session}/{number}", session, tuple(context), SamplingParams(TOKENS, seed=seed))


def generate(engine, request):
    return asyncio.run(engine.generate(request))


async def play(engine, number):
    """One episode: turns on a growing context, with something new before each."""
    context = (number,)
    for index in range(TURNS):
        context += (90 + index,)
        result = await engine.generate(turn(f"episode-{number}", index, context, seed=number))
        context += result.ids
    return context


def faultless(number):
    context = (number,)
    for index in range(TURNS):
        context += (90 + index,)
        context += turn_ids(context, number, TOKENS)
    return context


def play_round(engine, count):
    async def gather():
        return await asyncio.gather(*(play(engine, number) for number in range(count)), return_exceptions=True)

    return asyncio.run(gather())


def test_every_fault_is_tested():
    assert {"ok", "400", "stale", "abort", *PASSING, *BROKEN} == set(FAULTS)


# A fault that stays.


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_stays_is_unavailable_after_the_attempts(server, engine_of, fault):
    server.plan(*[fault] * 3)
    with pytest.raises(ServerUnavailableError, match="/generate"):
        generate(engine_of(server.url, timeout_s=0.3 if fault in SILENT else 20), turn())
    assert len(server.bodies) == 3


def test_a_server_that_is_down_is_unavailable(server, engine_of):
    server.close()
    engine = engine_of(server.url)
    with pytest.raises(ServerUnavailableError):
        generate(engine, turn())
    with pytest.raises(ServerUnavailableError):
        engine.health()


def test_the_budget_of_time_ends_the_attempts(server, engine_of):
    server.plan(*["500"] * 1000)
    began = time.monotonic()
    with pytest.raises(ServerUnavailableError):
        generate(engine_of(server.url, attempts=1000, retry_s=0.3), turn())
    assert len(server.bodies) < 1000
    assert time.monotonic() - began < 30  # the budget, and generous slack; without it: at least 40 s of pauses


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_answer_is_a_protocol_error_at_once(server, engine_of, fault):
    server.plan(fault)
    with pytest.raises(ServerProtocolError, match="127.0.0.1"):
        generate(engine_of(server.url), turn())
    assert len(server.bodies) == 1


def test_a_refusal_is_not_asked_again(server, engine_of):
    server.plan("400")
    with pytest.raises(ServerRefusedError, match="told to answer 400"):
        generate(engine_of(server.url), turn())
    assert len(server.bodies) == 1


def test_an_abort_is_no_stop(server, engine_of):
    server.plan("abort")
    result = generate(engine_of(server.url), turn())
    assert (result.finish_reason, result.ids) == ("abort", turn_ids((1, 2, 3), 7, 1))


def test_a_wrong_key_is_refused_and_a_right_one_taken(server, engine_of):
    server.key = "secret"
    with pytest.raises(ServerRefusedError, match="401"):
        generate(engine_of(server.url), turn())
    engine = engine_of(server.url, api_key="secret")
    assert generate(engine, turn()).ids == turn_ids((1, 2, 3), 7, TOKENS)
    assert "secret" not in repr(HttpOptions((server.url,), api_key="secret"))


# A fault that passes: rounds.


@pytest.mark.parametrize("fault", PASSING)
def test_a_round_survives_a_fault_that_passes(server, engine_of, fault):
    server.plan("ok", "ok", fault, "ok", fault, "ok", "ok", fault)
    engine = engine_of(server.url, attempts=20, timeout_s=1 if fault in SILENT else 20)
    assert play_round(engine, 6) == [faultless(number) for number in range(6)]
    retries = engine.stats()["retries"]
    assert retries == 3 or (fault in SILENT and retries > 3)  # a busy machine may make others late too
    rids = [body["rid"] for body in server.bodies]
    assert len(rids) == len(set(rids)) == 6 * TURNS + retries


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_answer_ends_its_own_episode_only(server, engine_of, fault):
    server.plan(*["ok"] * 7, fault)
    results = play_round(engine_of(server.url), 5)
    failed = [result for result in results if isinstance(result, EngineError)]
    assert len(failed) == 1
    assert isinstance(failed[0], ServerProtocolError)
    whole = [faultless(number) for number, result in enumerate(results) if not isinstance(result, EngineError)]
    assert [result for result in results if not isinstance(result, EngineError)] == whole


def test_a_timed_out_turn_is_aborted_on_its_server(server, engine_of):
    server.plan("hang")
    engine = engine_of(server.url, timeout_s=0.5, attempts=20)
    assert generate(engine, turn()).ids == turn_ids((1, 2, 3), 7, TOKENS)
    assert server.paths.count("/abort_request") >= 1


def test_a_cancelled_turn_is_aborted_on_its_server(server, engine_of):
    server.plan("hang")
    engine = engine_of(server.url)

    async def cancel():
        task = asyncio.create_task(engine.generate(turn()))
        while not server.bodies:
            await asyncio.sleep(0.01)
        task.cancel()
        while "/abort_request" not in server.paths:
            await asyncio.sleep(0.01)
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(cancel())


def test_retry_after_is_waited_for(server, engine_of):
    server.plan("429")
    engine = engine_of(server.url, wait_s=30.0, wait_max_s=60.0)  # only the server's 0.05 s can be this quick
    began = time.monotonic()
    generate(engine, turn())
    assert time.monotonic() - began < 25


# Several servers.


def test_sessions_stick_to_one_server_and_spread_over_all(engine_of):
    with FaultyServer() as first, FaultyServer() as second:
        engine = engine_of(first.url, second.url)
        assert play_round(engine, 12) == [faultless(number) for number in range(12)]
        sessions = [{body["rid"].split("/")[0] for body in server.bodies} for server in (first, second)]
        assert not sessions[0] & sessions[1]
        assert all(sessions)


def test_sessions_move_on_when_their_server_is_gone(engine_of):
    with FaultyServer() as first, FaultyServer() as second:
        engine = engine_of(first.url, second.url)
        first.close()
        assert play_round(engine, 6) == [faultless(number) for number in range(6)]


def test_a_router_gets_the_turns_and_each_server_the_control(engine_of):
    with FaultyServer() as router, FaultyServer() as first, FaultyServer() as second:
        engine = engine_of(first.url, second.url, router=router.url)
        engine.update_weights(None, 1)
        router.version = first.version
        generate(engine, turn())
        engine.pause("retract")
        engine.resume()
        engine.abort_all()
        engine.flush_cache()
        engine.health_generate()
        assert router.paths == ["/generate"]
        control = ["/pause_generation", "/update_weights_from_disk", "/model_info", "/continue_generation"]
        control += ["/pause_generation", "/continue_generation", "/abort_request", "/flush_cache", "/health_generate"]
        assert first.paths == second.paths == control


# Weights.


def test_stale_weights_are_pushed_again_and_the_turn_asked_again(server, engine_of):
    engine = engine_of(server.url)
    engine.update_weights(None, 3)
    server.version = "default"  # as after a restart
    result = generate(engine, turn())
    assert (result.weight_version, result.ids) == (3, turn_ids((1, 2, 3), 7, TOKENS))
    assert engine.stats()["weights_pushed_again"] == 1


def test_a_round_on_a_stale_server_pushes_once(engine_of):
    with FaultyServer(delay_s=0.05) as server:
        engine = engine_of(server.url)
        engine.update_weights(None, 3)
        server.version = "default"
        assert play_round(engine, 8) == [faultless(number) for number in range(8)]
        assert engine.stats()["weights_pushed_again"] == 1


def test_weights_that_stay_stale_are_an_error(server, engine_of):
    engine = engine_of(server.url)
    engine.update_weights(None, 3)
    server.plan("stale", "stale")
    with pytest.raises(StaleWeightsError, match="version 3"):
        generate(engine, turn())


def test_an_update_that_does_not_take_is_an_error_and_generation_goes_on(server, engine_of):
    engine = engine_of(server.url)
    server.keeps_version = False
    with pytest.raises(StaleWeightsError, match="'default'"):
        engine.update_weights(None, 1)
    assert server.paths[-1] == "/continue_generation"


# A server killed in mid-round.


def wait_for_second_turns(engine, episodes):
    while engine.stats()["requests"] < episodes + 2:
        time.sleep(0.005)


def test_a_round_survives_a_server_that_is_killed_and_comes_back(engine_of):
    with ServerProcess("sage_jax.testing.faulty_server", "--delay", "0.3") as server:
        engine = engine_of(server.url, attempts=200, retry_s=60, wait_s=0.05, wait_max_s=0.2)
        engine.update_weights(None, 5)

        def kill_and_restart():
            wait_for_second_turns(engine, 8)
            server.kill()
            server.start()

        killer = threading.Thread(target=kill_and_restart)
        killer.start()
        results = play_round(engine, 8)
        killer.join()
        assert results == [faultless(number) for number in range(8)]
        # The new process knew nothing of version 5 and got it before its first turn counted.
        assert engine.stats()["weights_pushed_again"] == 1
        assert engine.stats()["retries"] >= 8


def test_a_server_killed_for_good_ends_every_episode_with_its_error(engine_of):
    with ServerProcess("sage_jax.testing.faulty_server", "--delay", "0.1") as server:
        engine = engine_of(server.url)
        killer = threading.Thread(target=lambda: (wait_for_second_turns(engine, 4), server.kill()))
        killer.start()
        results = play_round(engine, 4)
        killer.join()
    assert [type(result) for result in results] == [ServerUnavailableError] * 4


# Options.


@pytest.mark.parametrize(
    ("urls", "message"),
    [((), "empty"), (("127.0.0.1:1",), "must begin with"), (("http://a", "http://a/"), "named twice")],
)
def test_wrong_addresses_are_refused(urls, message):
    with pytest.raises(ConfigError, match=message):
        HttpOptions(urls)


def test_an_adapter_that_is_not_confirmed_is_an_error(server, engine_of):
    with pytest.raises(ServerRefusedError, match="load_lora_adapter"):
        engine_of(server.url).load_lora_adapter("adapter", "folder")


def test_choices_are_refused(server, engine_of):
    request = GenerateRequest("r", "s", (1,), SamplingParams(4, choices=((1, 2),)))
    with pytest.raises(EngineError, match="choices"):
        generate(engine_of(server.url), request)
    assert not server.bodies
