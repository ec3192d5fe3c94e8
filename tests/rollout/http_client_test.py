"""Addresses, keys and answers that no call can be made with: typed errors that never tell the key."""

import asyncio
import logging
import traceback

import pytest

from sage_jax.errors import ConfigError, EngineError, ServerProtocolError, ServerUnavailableError
from sage_jax.rollout.http_client import HttpClient, HttpOptions, read_key
from sage_jax.rollout.http_types import read_answer
from sage_jax.testing.faulty_server import FaultyServer
from tests.rollout.faults_test import turn


def call(url, **options):
    async def once():
        client = HttpClient(HttpOptions((url,), **options))
        try:
            return await client.call(url, "/generate", generate_body(), timeout_s=20)
        finally:
            await client.close()

    return asyncio.run(once())


def generate_body():
    params = {"sampling_seed": 7, "max_new_tokens": 5}
    return {"rid": "r", "input_ids": [1, 2, 3], "sampling_params": params}


@pytest.fixture
def server():
    with FaultyServer() as made:
        yield made


# Addresses.


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:3000O", "3000O"),
        ("http://127.0.0.1:99999", "99999"),
        ("http://", "must begin with"),
        ("http://?a", "a host"),
        ("http://host/?key=1", "no query"),
        ("ftp://host", "must begin with"),
    ],
)
@pytest.mark.parametrize("place", ["urls", "router"])
def test_addresses_that_cannot_be_called_are_refused(url, message, place):
    values = {"urls": (url,)} if place == "urls" else {"urls": ("http://host",), "router": url}
    with pytest.raises(ConfigError, match=message):
        HttpOptions(**values)


def test_a_password_in_an_address_is_refused_and_not_told():
    with pytest.raises(ConfigError, match="engine_api_key_env") as caught:
        HttpOptions(("http://user:s3cr3t@host:30000",))
    assert "s3cr3t" not in str(caught.value)


# Keys.


def test_a_key_is_read_without_the_white_space_around_it(monkeypatch):
    monkeypatch.setenv("A_KEY", " s3cr3t\n")
    assert read_key("engine_api_key_env", "A_KEY") == "s3cr3t"


@pytest.mark.parametrize("key", ["s3cr3t\ns3cr3t", "schlüssel-s3cr3t", "s3cr3t\x7f"])
def test_a_key_that_no_header_takes_is_refused_and_not_told(key, monkeypatch):
    monkeypatch.setenv("A_KEY", key)
    for refuse in (lambda: read_key("engine_api_key_env", "A_KEY"), lambda: HttpOptions(("http://a",), api_key=key)):
        with pytest.raises(ConfigError, match="which no HTTP header takes") as caught:
            refuse()
        assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigError, match="engine_api_key_env='A_KEY'"):
        read_key("engine_api_key_env", "A_KEY")


@pytest.mark.parametrize("key", ["s3cr3t\n", " s3cr3t", " "])
def test_white_space_around_a_key_that_was_not_read_is_refused(key):
    with pytest.raises(ConfigError, match="white space around it"):
        HttpOptions(("http://a",), api_key=key)


def test_a_key_may_have_a_space(server):
    server.key = "two words"
    assert call(server.url, api_key="two words")["output_ids"]


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_key_that_is_not_there_is_named(value, monkeypatch):
    if value is not None:
        monkeypatch.setenv("A_KEY", value)
    with pytest.raises(ConfigError, match="engine_api_key_env='A_KEY'"):
        read_key("engine_api_key_env", "A_KEY")


def test_a_request_that_cannot_be_sent_is_not_unavailable_and_tells_no_key(server, caplog):
    options = HttpOptions((server.url,))
    object.__setattr__(options, "api_key", "s3cr3t\n")  # past the check, for the sake of the next one

    async def ask():
        client = HttpClient(options)
        try:
            await client.control(server.url, "/flush_cache")
        finally:
            await client.close()

    with caplog.at_level(logging.INFO), pytest.raises(EngineError, match="cannot be sent") as caught:
        asyncio.run(ask())
    assert not isinstance(caught.value, ServerUnavailableError)
    assert not server.paths
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value)) + caplog.text


# Answers.


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("fault", ["deep_json", "long_number", "bad_gzip"])
def test_answers_that_cannot_be_read_have_typed_errors(server, fault, status):
    server.status = status
    server.plan(fault)
    with pytest.raises(ServerProtocolError if status == 200 or fault == "bad_gzip" else EngineError) as caught:
        call(server.url)
    assert server.url in str(caught.value)


@pytest.mark.parametrize("value", [-(10**400), 10**400, True, "-1.0", [-1.0], float("-inf")])
def test_a_logprob_that_is_no_number_of_a_float_is_a_protocol_error(server, value):
    answer = call(server.url)
    answer["meta_info"]["output_token_logprobs"][0][0] = value
    with pytest.raises(ServerProtocolError, match="a finite log-prob of at most 0 is expected"):
        read_answer(answer, turn(), budget=5, vocab_size=100, source="here")


def test_an_integer_is_a_logprob(server):
    answer = call(server.url)
    answer["meta_info"]["output_token_logprobs"][0][0] = -2
    assert read_answer(answer, turn(), budget=5, vocab_size=100, source="here").logprobs[0] == -2.0
