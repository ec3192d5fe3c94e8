"""The server's application in this process: whatever comes in is answered in JSON, and counted."""

import json

import jax
import numpy as np
import openai
import pytest

from sage_jax.models import hf
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.http_requests import SAMPLING_NAMES
from tests.rollout.conftest import call_app


def post(path, content):
    return ("POST", path, {"content": content} if isinstance(content, bytes) else {"json": content})


def counted(service, *requests, **options):
    """Sends requests to one application; returns their answers and the text of its metrics."""
    *answers, metrics = call_app(service, *requests, ("GET", "/metrics", {}), **options)
    return answers, metrics.text


CHAT = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "content", "word"),
    [
        ("/generate", b'{"input_ids":[5],"sampling_params":{"temperature":1' + b"0" * 400 + b"}}", "temperature"),
        ("/generate", b'{"input_ids":[5],"sampling_params":{"top_p":1' + b"0" * 400 + b"}}", "top_p"),
        ("/generate", b'{"input_ids":[5],"sampling_params":{"temperature":NaN}}', "temperature"),
        ("/generate", {"input_ids": [5], "sampling_params": {"temperature": "warm"}}, "temperature"),
        ("/generate", {"input_ids": [5], "sampling_params": {"stop_token_ids": 5}}, "stop_token_ids"),
        ("/generate", b"[" * 100_000, "JSON"),
        ("/generate", b'{"input_ids":[5],"rid":"\\ud800"}', "JSON"),
        ("/generate", b'{"text":"\xff"}', "JSON"),
        ("/generate", b"1" * 5000, "JSON"),
        ("/v1/chat/completions", {**CHAT, "tools": 5}, "tools"),
        ("/v1/chat/completions", {**CHAT, "stop": 5}, "stop"),
        ("/v1/chat/completions", {**CHAT, "rid": [1]}, "rid"),
        ("/update_weights_from_disk", {"model_path": "\0"}, "Failed to update weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_body_that_cannot_be_is_a_400_and_counted(speaker, path, content, word):
    (answer,), metrics = counted(speaker(), post(path, content))
    assert (answer.status_code, word in answer.json()["error"]["message"]) == (400, True)
    assert f'sage_jax_http_answers_total{{path="{path}",status="400"}} 1.0' in metrics


TURN = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
VALUES = [None, True, 0, -1, 1.5, 2**70, 1e308, float("nan"), "", "a", "\0", [], [None], [5], ["a"], {}, {"a": 1}, [{}]]
OPENAI = sorted(openai.types.chat.completion_create_params.CompletionCreateParamsBase.__annotations__)


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        ("/generate", [{**TURN, name: value} for name in ("text", "rid", "stream", *TURN) for value in VALUES]),
        ("/generate", [{**TURN, "sampling_params": {name: value}} for name in SAMPLING_NAMES for value in VALUES]),
        ("/v1/chat/completions", [{**CHAT, name: value} for name in OPENAI for value in VALUES]),
        ("/v1/chat/completions", [{**CHAT, "messages": [{"role": "user", "content": value}]} for value in VALUES]),
    ],
    ids=["turn", "sampling", "chat", "message"],
)
def test_no_value_of_any_field_is_a_500(speaker, path, bodies):
    service = speaker()
    answers = call_app(service, *(post(path, json.dumps(body).encode()) for body in bodies))
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.status_code in (200, 400, 404), body
        assert answer.status_code == 200 or answer.json()["error"]["message"], body
    assert not service.live


@pytest.mark.parametrize("value", [b"Bearer \xe9", "Bearer é".encode(), b"\xff", b""])
def test_any_bytes_as_a_key_are_a_401(speaker, value):
    request = ("GET", "/model_info", {"headers": {b"Authorization": value}})
    (answer,) = call_app(speaker(), request, key="a secret", sent=False)
    assert (answer.status_code, "Unauthorized" in answer.json()["error"]["message"]) == (401, True)


def test_a_key_may_be_any_text(speaker):
    request = ("GET", "/model_info", {"headers": {b"Authorization": "Bearer schlüssel".encode()}})
    (answer,) = call_app(speaker(), request, key="schlüssel", sent=False)
    assert answer.status_code == 200


def test_paths_and_methods_that_there_are_none_of(speaker):
    (nothing, wrong), metrics = counted(speaker(), ("GET", "/nothing", {}), ("GET", "/generate", {}))
    assert (nothing.status_code, nothing.json()) == (404, {"error": {"message": "Not Found"}})
    assert (wrong.status_code, wrong.json()) == (405, {"error": {"message": "Method Not Allowed"}})
    assert wrong.headers["Allow"] == "POST"
    assert 'sage_jax_http_answers_total{path="other",status="404"} 1.0' in metrics
    assert 'sage_jax_http_answers_total{path="other",status="405"} 1.0' in metrics


def test_an_error_that_nobody_foresaw_is_a_500_that_is_logged_and_counted(speaker, caplog):
    class BrokenTokenizer:
        def encode(self, text):
            raise RuntimeError("no such merge")

    service = speaker()
    service.tokenizer = BrokenTokenizer()
    (answer,), metrics = counted(service, post("/generate", {"text": "go"}))
    assert (answer.status_code, list(answer.json()["error"])) == (500, ["message"])
    assert "no such merge" not in answer.text
    assert "no such merge" in caplog.text
    assert 'sage_jax_http_answers_total{path="/generate",status="500"} 1.0' in metrics


def test_a_turn_that_fails_by_itself_is_no_fault_of_the_server(speaker):
    service = speaker()
    model, params = hf.load(service.folder)
    broken = jax.tree.map(lambda leaf: leaf * np.nan, params)
    service.engine = EmbeddedEngine(model, broken, service.engine.config)
    (answer, health) = call_app(service, post("/generate", {"input_ids": [5]}), ("GET", "/health", {}))
    service.engine.close()
    assert (answer.status_code, health.status_code) == (422, 200)
    assert "not finite" in answer.json()["error"]["message"]


def test_more_sequences_than_the_server_ever_takes_are_refused_for_good(speaker):
    (answer,) = call_app(speaker(limit=2), post("/generate", {"input_ids": [[5]] * 3}))
    assert answer.status_code == 400
    assert "2 at once" in answer.json()["error"]["message"]


def test_a_dead_engine_is_a_503_that_says_when_to_ask_again(speaker):
    service = speaker()
    model, params = hf.load(service.folder)
    service.engine = EmbeddedEngine(model, params, service.engine.config)
    service.engine.close()
    (answer,) = call_app(service, ("GET", "/health", {}))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"]["message"]
