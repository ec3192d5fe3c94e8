"""OpenAI's chat API on our server: its own client, what is taken and refused, content parts, tool calls, siblings."""

import asyncio
import contextlib
import json

import httpx
import openai
import pytest

from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.envs.webwalker import TwinOptions, WebwalkerFactory, make_tasks
from sage_jax.rollout.openai_llm import OpenAiLlm, OpenAiOptions
from sage_jax.rollout.server import ServerApp
from sage_jax.testing.local_pool import LocalPool
from sage_jax.testing.server_process import ServerProcess, server_arguments
from tests.rollout import conftest
from tests.rollout.conftest import CALL, call_app

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "go to shelf"}
TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {"type": "object"}}}
CHAT = {"messages": [USER], "max_tokens": 3, "temperature": 0, "ignore_eos": True}


def chat(service, **fields):
    """Returns the answer to CHAT with other fields; a field of ... is left out."""
    body = {name: value for name, value in {**CHAT, **fields}.items() if value is not ...}
    (answer,) = call_app(service, ("POST", PATH, {"json": body}))
    return answer


def prompt_of(service, messages, **fields):
    answer = chat(service, messages=messages, return_token_ids=True, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["prompt_token_ids"]


# What is taken, and what is refused by its name.


@pytest.mark.parametrize(
    "field",
    [
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"top_logprobs": 0},
        {"logit_bias": {}},
        {"stream": False},
        {"parallel_tool_calls": True},
        {"parallel_tool_calls": False},
        {"store": False},
        {"metadata": {"run": "1"}},
        {"user": "someone"},
        {"n": 1},
        {"max_tokens": ..., "max_completion_tokens": 3},
        {"modalities": ["text"]},
        {"service_tier": "auto"},
        {"model": "tiny"},
        {"model": "default"},
        {"tools": []},
        {"stop": []},
    ],
    ids=str,
)
def test_a_value_that_changes_nothing_is_taken(speaker, field):
    answer = chat(speaker(name="served/tiny"), **field)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == chat(speaker()).json()["choices"]


def test_null_is_taken_for_every_field_of_openai_but_the_messages(speaker):
    params = openai.types.chat.completion_create_params.CompletionCreateParamsBase.__annotations__
    nulls = dict.fromkeys(set(params) - {"messages"})
    answer = chat(speaker(), **nulls, ignore_eos=False)
    assert len(nulls) > 30
    assert (answer.status_code, answer.json()["choices"][0]["finish_reason"]) == (200, "stop")


@pytest.mark.parametrize(
    "field",
    [
        {"presence_penalty": 0.5},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "find"}}},
        {"response_format": {"type": "json_object"}},
        {"top_logprobs": 2},
        {"logit_bias": {"5": 1}},
        {"stream": True},
        {"stream_options": {"include_usage": True}},
        {"store": True},
        {"modalities": ["text", "audio"]},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": True},
        {"max_tokens": 2.5},
        {"max_completion_tokens": 0},
        {"stop": [""]},
        {"stop": ""},
        {"stop": [5]},
        {"tools": [5]},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "web", "function": {"name": "find"}}]},
        {"logprobs": 1},
        {"parallel_tool_calls": 1},
        {"n": 0},
        {"n": "2"},
        {"seed": "a"},
        {"temperature": -1},
        {"model": 5},
        {"rid": ""},
        {"mood": None},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": 5, "content": "go"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
        {"messages": [{"role": "assistant", "content": "go", "tool_calls": 5}]},
        {"messages": ["go"]},
    ],
    ids=str,
)
def test_another_value_is_a_400_that_names_the_field(speaker, field):
    answer = chat(speaker(), **field)
    assert answer.status_code == 400
    (name,) = field
    assert name in answer.json()["error"]["message"]


def test_the_part_that_is_wrong_is_named(speaker):
    content = [{"type": "text", "text": "go"}, {"type": "image_url", "image_url": {"url": "a"}}]
    answer = chat(speaker(), messages=[USER, {"role": "user", "content": content}])
    assert "messages[1].content[1]" in answer.json()["error"]["message"]


def test_another_model_is_a_404_as_openai_says_it(speaker):
    answer = chat(speaker(name="served/tiny"), model="gpt")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    service = speaker()
    assert chat(service, model=str(service.folder)).status_code == chat(service, model=service.folder.name).status_code
    assert chat(service, model=service.folder.name).status_code == 200


def test_a_model_keeps_its_first_name_when_it_gets_new_weights(speaker, tmp_path):
    service = speaker()
    first = service.name
    conftest.save_speaker(tmp_path)
    asyncio.run(service.update_weights(str(tmp_path), "2"))
    assert (service.name, chat(service, model=first).status_code) == (str(tmp_path), 200)


# Messages.


def test_text_parts_are_joined(speaker):
    service = speaker()
    parts = [{"type": "text", "text": "go"}, {"type": "text", "text": "to shelf"}]
    wanted = prompt_of(service, [{"role": "user", "content": "go\nto shelf"}])
    assert prompt_of(service, [{"role": "user", "content": parts}]) == wanted
    assert service.tokenizer.decode(wanted) == "<|user|> go to shelf <|end|> <|assistant|>"


def test_a_conversation_with_calls_reaches_the_template_as_objects(speaker):
    service = speaker()
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"go": "lamp"}'}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "1", "content": "shelf"})
    shown = '<tool_call>{"name": "find", "arguments": {"go": "lamp"}}</tool_call>'
    expected = f"<|user|>go to shelf<|end|><|assistant|>{shown}<|end|><|assistant|>shelf<|end|><|assistant|>"
    assert prompt_of(service, messages) == service.tokenizer.encode(expected, add_special_tokens=False)
    del messages[1]["content"]
    call["function"]["arguments"] = {"go": "lamp"}
    assert prompt_of(service, messages) == service.tokenizer.encode(expected, add_special_tokens=False)


@pytest.mark.parametrize("arguments", ["{no json", '{"a": "\\ud800"}', "5"])
def test_arguments_that_are_no_json_reach_the_template_as_text(speaker, arguments):
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    prompt_of(speaker(), [USER, {"role": "assistant", "content": "", "tool_calls": [call]}], max_tokens=1)


def test_arguments_too_deep_to_read_are_text_too(speaker):
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "[" * 5000}}
    answer = chat(speaker(), messages=[USER, {"role": "assistant", "content": "", "tool_calls": [call]}])
    assert (answer.status_code, "longer than the model's context" in answer.text) == (400, True)


def test_a_template_that_refuses_is_a_400(speaker, monkeypatch):
    service = speaker()
    monkeypatch.setattr(service.tokenizer, "chat_template", "{{ messages[0]['content'] + 5 }}")
    answer = chat(service)
    assert (answer.status_code, "chat template" in answer.json()["error"]["message"]) == (400, True)


# Answers.


def test_a_stop_text_cuts_the_answer(speaker):
    (choice,) = chat(speaker(), stop=["nowhere", '{"name"']).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("<tool_call> ", "stop")


def test_a_tool_call_is_read_when_tools_are_offered(speaker):
    (choice,) = chat(speaker(), tools=[TOOL], max_tokens=9, ignore_eos=False).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    assert (call["type"], call["function"]["name"]) == ("function", "find")
    assert json.loads(call["function"]["arguments"]) == {"text": "lamp"}


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}], ids=str)
def test_without_tools_a_call_stays_text(speaker, fields):
    (choice,) = chat(speaker(), **fields, max_tokens=9, ignore_eos=False).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": f"<tool_call> {CALL} </tool_call>", "tool_calls": None}
    assert choice["finish_reason"] == "stop"


def test_tools_that_the_template_cannot_show_are_a_400(speaker, monkeypatch):
    service = speaker()
    template = service.tokenizer.chat_template.replace("{% if tools %}", "{% if false %}")
    monkeypatch.setattr(service.tokenizer, "chat_template", template)
    answer = chat(service, tools=[TOOL])
    assert (answer.status_code, "tools" in answer.json()["error"]["message"]) == (400, True)


def test_several_calls_are_cut_to_one_when_parallel_ones_are_not_wanted(speaker, monkeypatch):
    service = speaker()
    decode = service.tokenizer.decode
    monkeypatch.setattr(service.tokenizer, "decode", lambda ids, **options: 2 * decode(ids, **options))
    options = {"tools": [TOOL], "max_tokens": 9, "ignore_eos": False}
    for wanted, count in ((True, 2), (False, 1)):
        (choice,) = chat(service, **options, parallel_tool_calls=wanted).json()["choices"]
        assert len(choice["message"]["tool_calls"]) == count


def test_siblings_of_a_refused_choice_are_aborted(speaker):
    service = speaker(limit=3)

    async def ask():
        transport = httpx.ASGITransport(ServerApp(service).build())
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            service.live["another"] = None  # leaves room for two of three
            answer = await client.post(PATH, json={**CHAT, "n": 3, "max_tokens": 190})
            return answer, list(service.live)

    answer, live = asyncio.run(ask())
    assert (answer.status_code, answer.headers["Retry-After"], live) == (503, "1", ["another"])


# OpenAI's own client, and this project's.


def test_openai_s_client_calls_a_tool_and_sends_back_what_it_found(speaker):
    transport = httpx.ASGITransport(ServerApp(speaker(name="tiny")).build())
    messages = [{"role": "user", "content": [{"type": "text", "text": "go"}]}]
    options = {"model": "tiny", "tools": [TOOL], "temperature": 0, "max_completion_tokens": 20}

    async def converse(ask):
        first = (await ask(messages=messages, **options)).choices[0]
        (call,) = first.message.tool_calls
        assert (first.finish_reason, json.loads(call.function.arguments)) == ("tool_calls", {"text": "lamp"})
        messages.extend([first.message, {"role": "tool", "tool_call_id": call.id, "content": "shelf"}])
        second = (await ask(messages=messages, **options)).choices[0]
        assert second.message.tool_calls[0].id != call.id
        with pytest.raises(openai.NotFoundError) as caught:
            await ask(messages=messages, **{**options, "model": "gpt"})
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            await ask(messages=messages, model="tiny", max_tokens=0)

    async def main():
        plain = httpx.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(base_url="http://app/v1", api_key="none", http_client=plain) as client:
            await converse(client.chat.completions.create)

    asyncio.run(main())


@pytest.mark.slow
def test_a_task_llm_on_a_server_process_walks_a_site_by_tool_calls(tmp_path):
    """What task_llm=endpoint with task_mode=tools does: the agent, the environment and the client are the real ones."""
    conftest.save_speaker(tmp_path)
    task = make_tasks(TwinOptions(seed=2, train=1, valid=0, test=0))["train"][0]
    sizes = server_arguments(slots=2, max_length=3000, prefill_rows=4, prefill_chunk=64, decode_steps=4)
    with (
        ServerProcess("sage_jax.rollout.server", "--model", str(tmp_path), *sizes) as server,
        contextlib.closing(WebwalkerFactory()) as factory,
    ):
        llm = OpenAiLlm(OpenAiOptions(url=server.url + "/v1", model=tmp_path.name, retries=0))
        agent = ToolAgent(llm, LocalPool(factory), ToolAgentOptions(mode="tools", max_steps=3, temperature=0.0))

        async def play():
            rollouts = await agent.play_all([(task, None, 0)], concurrency=1)
            await llm.close()
            return rollouts

        (rollout,) = asyncio.run(play())
    # The tool ran: there is no lamp on that site.
    assert (rollout.info["outcomes"], rollout.info["ended_by"]) == (["not_found"] * 3, "steps")
    assert [message["role"] for message in rollout.messages[-4:]] == ["assistant", "tool"] * 2
