"""The task LLM over a real HTTP endpoint: answers, faults, budgets, the cache, and a key that never gets out."""

import asyncio
import dataclasses
import itertools
import json
import logging

import pytest

from sage_jax.errors import (
    BudgetError,
    ConfigError,
    DataError,
    ServerProtocolError,
    ServerRefusedError,
    ServerUnavailableError,
)
from sage_jax.rollout.openai_llm import OpenAiLlm, OpenAiOptions
from sage_jax.rollout.task_llm import Budget, ChatRequest, ReplyCache
from sage_jax.testing.chat_server import ChatServer, fault

KEY = 'sk-very"secret\\key'  # characters that JSON escapes
REQUEST = ChatRequest(({"role": "user", "content": "2 + 2?"},), seed=7, temperature=0.5, max_tokens=50)
TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {"type": "object"}}}


def ask(server, requests=(REQUEST,), budget=None, **options):
    """Returns the LLM and what each request came to, asked one after the other."""
    options = {"url": server.url, "model": "m", "retries": 0, "timeout_s": 20.0, **options}
    llm = OpenAiLlm(OpenAiOptions(**options), budget)

    async def main():
        results = []
        for request in requests:
            try:
                results.append(await llm.complete(request))
            except Exception as error:
                results.append(error)
        await llm.close()
        return results

    return llm, asyncio.run(main())


def test_text_and_what_is_asked():
    with ChatServer(lambda body: "4") as server:
        llm, (reply,) = ask(server, price_in=1.0, price_out=10.0)
    assert (reply.text, reply.tool_calls, reply.prompt_tokens, reply.completion_tokens) == ("4", (), 100, 10)
    assert reply.cost == pytest.approx((100 * 1.0 + 10 * 10.0) / 1e6)
    sampling = {"temperature": 0.5, "max_tokens": 50, "seed": 7}
    assert server.bodies == [{"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}], **sampling}]
    assert server.paths == ["/v1/chat/completions"]  # nothing but text was ever asked for
    assert (llm.spending.calls, llm.spending.tokens) == (1, 110)


def test_tool_calls_come_as_they_were_written():
    with ChatServer(lambda body: [("find", '{"text": '), ("find", "{}")]) as server:
        _, (reply,) = ask(server, [ChatRequest(REQUEST.messages, (TOOL,))])
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("find", '{"text": '), ("find", "{}")]
    assert server.bodies[0]["tools"] == [TOOL]


def completion(tokens):
    usage = b'{"prompt_tokens": %b, "completion_tokens": 1}' % tokens
    return b'{"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}], "usage": %b}' % usage


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (400, ServerRefusedError),
        (401, ServerRefusedError),
        (429, ServerUnavailableError),
        (500, ServerUnavailableError),
        (fault("drop"), ServerUnavailableError),
        (fault("hang"), ServerUnavailableError),
        (fault("garbage"), ServerProtocolError),
        (fault("empty"), ServerProtocolError),
        (b"[" * 100_000, ServerProtocolError),
        (completion(b"1e999"), ServerProtocolError),
        (completion(b"-5"), ServerProtocolError),
    ],
)
def test_faults_are_typed_and_the_next_question_is_answered(answer, error):
    answers = iter([answer, "fine"])
    with ChatServer(lambda body: next(answers)) as server:
        timeout = 1.0 if answer == fault("hang") else 20.0
        _, (failure, reply) = ask(server, [REQUEST, REQUEST], timeout_s=timeout)
    assert type(failure) is error
    assert reply.text == "fine"


def test_a_storm_of_429_passes_and_a_longer_one_is_given_up():
    answers = itertools.chain([429] * 3, ["fine"])
    with ChatServer(lambda body: next(answers)) as server:
        _, (reply,) = ask(server, retries=3)
        assert reply.text == "fine"
        assert len(server.bodies) == 4
    with ChatServer(lambda body: 429) as server:
        _, (failure,) = ask(server, retries=2)
        assert isinstance(failure, ServerUnavailableError)
        assert len(server.bodies) == 3


def test_a_question_that_was_cancelled_is_logged_as_such(tmp_path):
    async def give_up(url):
        llm = OpenAiLlm(OpenAiOptions(url, "m", log=str(tmp_path / "log")))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await llm.complete(REQUEST)
        await llm.close()

    with ChatServer(lambda body: fault("hang")) as server:
        asyncio.run(give_up(server.url))
    entry = json.loads((tmp_path / "log").read_text())
    assert (entry["outcome"], entry["reply"]) == ("cancelled", None)


def test_no_server_at_all():
    with ChatServer(lambda body: "x") as server:
        pass
    _, (failure,) = ask(server)
    assert isinstance(failure, ServerUnavailableError)


def test_budgets_stop_the_next_question():
    with ChatServer(lambda body: "x") as server:
        for budget in (Budget(calls=2), Budget(tokens=150), Budget(money=0.15)):
            _, results = ask(server, [REQUEST] * 3, budget, price_in=1000.0)
            assert [type(result).__name__ for result in results] == ["Reply", "Reply", "BudgetError"]
        assert "150" in str(ask(server, [REQUEST] * 3, Budget(tokens=150))[1][2])
        assert isinstance(ask(server, [REQUEST] * 2, Budget(calls=1))[1][1], BudgetError)


def test_answers_are_kept_by_content(tmp_path):
    with ChatServer(lambda body: f"seed {body['seed']}") as server:
        other = ChatRequest(REQUEST.messages, seed=8)
        llm, first = ask(server, [REQUEST, other, REQUEST], cache=str(tmp_path))
        assert [reply.text for reply in first] == ["seed 7", "seed 8", "seed 7"]
        assert [reply.cached for reply in first] == [False, False, True]
        assert (llm.spending.calls, llm.spending.cached, llm.spending.tokens) == (2, 1, 220)
        _, (again,) = ask(server, cache=str(tmp_path))  # another process would find it too
        assert again.cached
        ask(server, cache=str(tmp_path), model="n")
        assert len(server.bodies) == 3
    next(iter(tmp_path.glob("*/*.json"))).write_text("{")
    results = [ReplyCache(tmp_path).get(path.stem) for path in tmp_path.glob("*/*.json") if path.read_text() != "{"]
    assert len(results) == 2
    broken = next(path.stem for path in tmp_path.glob("*/*.json") if path.read_text() == "{")
    with pytest.raises(DataError, match="delete it"):
        ReplyCache(tmp_path).get(broken)


def test_failures_are_not_kept(tmp_path):
    answers = iter([500, "fine"])
    with ChatServer(lambda body: next(answers)) as server:
        _, (_, reply) = ask(server, [REQUEST, REQUEST], cache=str(tmp_path))
    assert reply.text == "fine"


def test_the_key_reaches_the_server_and_nothing_else(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TASK_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    # A server that quotes the key in an error, and models that have somehow got hold of it.
    answers = iter([fault("echo_key"), f"the key is {KEY}", [("find", json.dumps({"text": KEY}))]])
    requests = [dataclasses.replace(REQUEST, seed=seed) for seed in range(3)]
    with ChatServer(lambda body: next(answers), key=KEY) as server:
        log = tmp_path / "log" / "calls.jsonl"
        llm, results = ask(server, requests, key_env="TASK_KEY", log=str(log), cache=str(tmp_path / "cache"))
        assert server.keys == [KEY] * 3
    assert isinstance(results[0], ServerRefusedError)
    assert results[0].__cause__ is None
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["outcome"].partition(":")[0] for entry in entries] == ["ServerRefusedError", "ok", "ok"]
    seen = [*written, caplog.text, repr(llm.options), repr(vars(llm)), *map(repr, results), *map(str, results)]
    for text in seen:
        assert KEY not in text
        assert json.dumps(KEY)[1:-1] not in text
    assert "[secret]" in results[1].text
    assert "[secret]" in results[2].tool_calls[0].arguments


def test_refusals(monkeypatch):
    wrong = {"task_url='x'": {"url": "x"}, "task_url=": {"url": "http://[::1"}, "port up to": {"url": "http://a:99999"}}
    wrong |= {"task_model": {"model": ""}, "concurrency": {"concurrency": 0}}
    for key, values in wrong.items():
        with pytest.raises(ConfigError, match=key):
            OpenAiOptions(**({"url": "http://x", "model": "m"} | values))
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="task_key_env='NO_SUCH_KEY'"):
        OpenAiLlm(OpenAiOptions("http://x", "m", key_env="NO_SUCH_KEY"))
    with pytest.raises(ConfigError, match=r"budget\.money=-1"):
        Budget(money=-1)
