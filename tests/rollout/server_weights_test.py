"""Weights on several servers of which some are dead, late or taken by another trainer: on faulty servers."""

import asyncio
import logging
import threading
import time

import pytest

from sage_jax.errors import EngineError, ServerRefusedError, ServerUnavailableError, StaleWeightsError
from sage_jax.rollout import GenerateRequest, SamplingParams, server_weights
from sage_jax.rollout.http_client import HttpOptions
from sage_jax.rollout.server_weights import version_number
from sage_jax.rollout.sglang import SglangEngine
from sage_jax.testing.faulty_server import VOCAB_SIZE, FaultyServer, turn_ids


@pytest.fixture
def servers():
    """Two servers; a test may close one and open another at its address."""
    made = [FaultyServer(), FaultyServer()]
    yield made
    for server in made:
        server.close()


@pytest.fixture
def engine_of(tmp_path):
    made = []

    def make(*servers, **options):
        defaults = {"timeout_s": 20, "attempts": 4, "wait_s": 0.01, "wait_max_s": 0.05}
        made.append(
            SglangEngine(
                HttpOptions(tuple(server.url for server in servers), **{**defaults, **options}),
                vocab_size=VOCAB_SIZE,
                max_length=1000,
                write_weights=lambda params, version: tmp_path / str(version),
            )
        )
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def turn(session, number=0):
    return GenerateRequest(f"{session}/{number}", session, (1, 2, 3), SamplingParams(5, seed=7))


def session_of(engine, server):
    return next(f"s{number}" for number in range(100) if engine._pool.home(f"s{number}") == server.url)


def generate(engine, *requests):
    async def gather():
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(gather())


def reopen(servers, index):
    """Puts a new server, which knows of no weights, at the address of a closed one."""
    port = int(servers[index].url.rsplit(":", 1)[1])
    servers[index] = FaultyServer(port)
    return servers[index]


RIGHT = turn_ids((1, 2, 3), 7, 5)


# A dead server and a healthy one.


def test_a_stale_server_is_mended_though_another_is_dead(servers, engine_of):
    first, second = servers
    engine = engine_of(first, second)
    engine.update_weights(None, 3)
    second.close()
    first.version = "default"  # as after a restart
    (result,) = generate(engine, turn(session_of(engine, first)))
    assert (result.weight_version, result.ids) == (3, RIGHT)
    assert engine.stats()["weights_pushed_again"] == 1


def test_an_update_leaves_a_dead_server_out_and_says_so_once(servers, engine_of, caplog):
    first, second = servers
    engine = engine_of(first, second)
    engine.update_weights(None, 3)
    second.close()
    with caplog.at_level(logging.WARNING, "sage_jax.rollout.server_weights"):
        engine.update_weights(None, 4)
        engine.update_weights(None, 5)
    said = [record.message for record in caplog.records if record.name.endswith("server_weights")]
    assert len(said) == 1
    assert second.url in said[0]
    assert engine.stats()["weight_version"] == 5
    (result,) = generate(engine, turn(session_of(engine, second)))
    assert (result.weight_version, result.ids) == (5, RIGHT)


def test_a_server_that_was_left_out_has_the_newest_weights_before_its_first_turn(servers, engine_of, caplog):
    first, second = servers
    engine = engine_of(first, second, rest_s=0.01, rest_max_s=0.01)
    engine.update_weights(None, 3)
    second.close()
    engine.update_weights(None, 4)
    second = reopen(servers, 1)
    session = session_of(engine, second)
    with caplog.at_level(logging.WARNING, "sage_jax.rollout.server_weights"):
        deadline = time.monotonic() + 60
        while not second.bodies:  # its rest must end first
            assert time.monotonic() < deadline
            (result,) = generate(engine, turn(session))
            assert (result.weight_version, result.ids) == (4, RIGHT)
    assert second.paths.index("/update_weights_from_disk") < second.paths.index("/generate")
    assert second.version == first.version
    assert any("used again" in record.message and second.url in record.message for record in caplog.records)


def test_an_update_that_no_server_takes_is_unavailable(servers, engine_of):
    engine = engine_of(*servers)
    engine.update_weights(None, 3)
    for server in servers:
        server.close()
    with pytest.raises(ServerUnavailableError):
        engine.update_weights(None, 4)
    assert engine.stats()["weight_version"] == 3


def test_a_server_that_refuses_is_not_left_out(servers, engine_of):
    first, second = servers
    engine = engine_of(first, second, api_key="key")
    first.key = second.key = "key"
    engine.update_weights(None, 3)
    second.key = "another"
    with pytest.raises(ServerRefusedError, match=second.url):
        engine.update_weights(None, 4)


def test_behind_a_router_a_stale_server_is_found_though_another_is_dead(servers, engine_of):
    first, second = servers
    engine = engine_of(first, second, router=first.url)  # the "router" answers with the first one's weights
    engine.update_weights(None, 3)
    second.close()
    first.version = "default"
    (result,) = generate(engine, turn("any"))
    assert (result.weight_version, result.ids) == (3, RIGHT)


# A server that hangs.


def test_a_hung_server_costs_one_turn_one_timeout(servers, engine_of):
    hung, sound = servers
    engine = engine_of(hung, sound, timeout_s=2, rest_s=60)
    hung.plan(*["hang"] * 50)
    session = session_of(engine, hung)
    for number in range(4):
        (result,) = generate(engine, turn(session, number))
        assert result.ids == RIGHT
    assert len(hung.bodies) == 1


# Two trainers.


def test_a_server_that_another_trainer_updates_is_an_error(servers, engine_of):
    server, _ = servers
    ours, theirs = engine_of(server), engine_of(server)
    ours.update_weights(None, 3)
    theirs.update_weights(None, 3)
    with pytest.raises(StaleWeightsError, match="another trainer, [0-9a-f]{8}, updates this server too"):
        generate(ours, turn("episode"))
    (result,) = generate(theirs, turn("episode"))
    assert result.weight_version == 3


def test_the_weights_of_an_earlier_trainer_are_replaced(servers, engine_of):
    server, _ = servers
    engine_of(server).update_weights(None, 3)
    ours = engine_of(server)
    ours.update_weights(None, 3)
    (result,) = generate(ours, turn("episode"))
    assert result.weight_version == 3


@pytest.mark.parametrize(("name", "number"), [("0123abcd-17", 17), ("17", 17), ("default", 0), ("step-17", 0), ("", 0)])
def test_the_number_of_a_version(name, number):
    assert version_number(name) == number


# An update that is broken off.


def test_closing_during_an_update_lets_the_server_go_on(servers, engine_of):
    server, _ = servers
    server.update_s = 60
    engine, errors = engine_of(server), []

    def update():
        try:
            engine.update_weights(None, 1)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=update)
    thread.start()
    while "/update_weights_from_disk" not in server.paths:
        time.sleep(0.01)
    engine.close()
    thread.join(30)
    assert server.paths[-1] == "/continue_generation"
    assert not server.paused
    assert "closed while servers took weight version 1" in str(errors[0])


def test_closing_before_a_pause_is_confirmed_lets_the_server_go_on(servers, engine_of):
    server, _ = servers
    engine, errors = engine_of(server), []
    call = engine._client.call

    async def unheard(url, path, *arguments, **options):
        answer = await call(url, path, *arguments, **options)
        if path == "/pause_generation":
            await asyncio.Event().wait()
        return answer

    def update():
        try:
            engine.update_weights(None, 1)
        except EngineError as error:
            errors.append(error)

    engine._client.call = unheard
    thread = threading.Thread(target=update)
    thread.start()
    while not server.paused:
        time.sleep(0.01)
    engine.close()
    thread.join(30)
    assert not server.paused
    assert len(errors) == 1


def test_a_turn_that_is_cancelled_while_it_mends_its_server_lets_it_go_on(servers, engine_of):
    server, _ = servers
    engine = engine_of(server)
    engine.update_weights(None, 1)
    server.version, server.update_s = "default", 60

    async def cancel():
        task = asyncio.create_task(engine.generate(turn("episode")))
        while server.paths.count("/update_weights_from_disk") < 2:
            await asyncio.sleep(0.01)
        assert server.paused
        task.cancel()
        while server.paused:
            await asyncio.sleep(0.01)
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(cancel())


# Another client of the same run.


def test_a_client_that_adopts_weights_takes_answers_of_them_alone(servers, engine_of, monkeypatch):
    monkeypatch.setattr(server_weights, "LOOK_AGAIN_S", 0.01)
    first, second = servers
    trainer, other = engine_of(first, second), engine_of(first, second)
    trainer.update_weights(None, 3)
    assert trainer.published.version == 3
    other.adopt(trainer.published)
    (result,) = generate(other, turn(session_of(other, first)))
    assert (result.weight_version, result.ids) == (3, RIGHT)
    assert other.stats()["weights_pushed_again"] == 0
    trainer.update_weights(None, 4)
    other.adopt(trainer.published)
    assert generate(other, turn(session_of(other, second)))[0].weight_version == 4
    first.version = "default"  # as after a restart: whoever notices gives them again
    assert generate(other, turn(session_of(other, first)))[0].weight_version == 4
    assert other.stats()["weights_pushed_again"] == 1


def test_clients_name_their_requests_apart(servers, engine_of):
    engines = [engine_of(servers[0]) for _ in range(2)]
    for engine in engines:
        generate(engine, turn("session"))
    rids = [body["rid"] for body in servers[0].bodies if "rid" in body]
    assert len(rids) == len(set(rids)) == 2
