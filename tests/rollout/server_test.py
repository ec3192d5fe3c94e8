"""Our server as a real process: SGLang's contract on the wire, limits, keys, pauses, its end; a run that uses it."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import time

import httpx
import numpy as np
import pytest

from sage_jax.data.word_tokenizer import END, build_tokenizer
from sage_jax.errors import ConfigError, ServerRefusedError
from sage_jax.models import hf
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.http_client import HttpOptions
from sage_jax.rollout.prefix_sessions import PrefixSessions
from sage_jax.rollout.server import bind, main
from sage_jax.rollout.sglang import SglangEngine
from sage_jax.rollout.weights import WeightFolders
from sage_jax.testing.server_process import ServerProcess, server_arguments
from tests.rollout import conftest

MODEL = dataclasses.replace(conftest.MODEL, max_position=4096)
SIZES = {"max_length": 3000, "prefill_rows": 4, "prefill_chunk": 8, "decode_steps": 4, "max_stop_ids": 16}
SLOTS, KEY = 8, "a-secret"
LONG = 2900  # tokens: seconds, so that something can happen in between


def make_folder(folder, seed=0):
    params = conftest.draw_params(seed)
    hf.save(folder, MODEL, params, dtype="float32")
    build_tokenizer(["go", "to", "shelf", "lamp"], MODEL.vocab_size).save_pretrained(folder)
    return params


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    make_folder(folder)
    return folder


@pytest.fixture(scope="module")
def arguments(folder):
    return ["--model", str(folder), *server_arguments(slots=SLOTS, **SIZES)]


@pytest.fixture(scope="module")
def process(arguments):
    limits = ["--max-queued-requests", "24", "--max-body-bytes", "100000", "--served-model-name", "tiny"]
    key = ["--api-key-env", "SERVER_KEY"]
    with ServerProcess("sage_jax.rollout.server", *arguments, *limits, *key, env={"SERVER_KEY": KEY}) as server:
        yield server


@pytest.fixture
def server(process):
    """A client of the server, which is left running, open and with an empty cache."""
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=process.url, headers=headers, timeout=60, trust_env=False) as client:
        yield client
        client.post("/abort_request", json={"abort_all": True})
        client.post("/continue_generation")
        while client.post("/flush_cache").status_code != 200:
            time.sleep(0.01)


@pytest.fixture
def background():
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        yield pool


def body(ids=(5, 6, 7), rid=None, **sampling):
    params = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True} | sampling
    made = {"input_ids": list(ids), "sampling_params": params, "return_logprob": True}
    return made if rid is None else {**made, "rid": rid}


def ask(server, **values):
    answer = server.post("/generate", json=body(**values))
    assert answer.status_code == 200, answer.text
    return answer.json()


def running(server):
    return server.get("/server_info").json()["internal_states"][0]["running"]


def wait_until(condition):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came to that")


# /generate on the wire.


def test_the_answer_has_the_fields_of_the_contract(server):
    answer = ask(server, rid="my-request")
    meta = answer["meta_info"]
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("my-request", 3, 4)
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[token, None] for token in answer["output_ids"]]
    assert meta["output_token_logprobs_length"] == 4
    assert meta["input_token_logprobs"] == []
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 4}]


def test_a_stop_id_is_matched_and_trimmed_from_the_text_only(server):
    free = ask(server)["output_ids"]
    stopped = ask(server, stop_token_ids=[free[1]], ignore_eos=False)
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": free[1]}
    assert stopped["output_ids"] == free[:2]
    kept = ask(server, stop_token_ids=[free[1]], no_stop_trim=True, skip_special_tokens=False)
    assert len(kept["text"]) > len(stopped["text"])


def test_a_batch_is_answered_as_a_list_in_order(server):
    batch = {"input_ids": [[5], [6, 7], [8, 9, 10]], "sampling_params": {"max_new_tokens": 2}, "rid": "batch"}
    answers = server.post("/generate", json=batch).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1, 2, 3]
    assert [answer["meta_info"]["id"] for answer in answers] == ["batch_0", "batch_1", "batch_2"]


def test_n_gives_that_many_samples(server):
    answers = server.post("/generate", json=body(n=3, temperature=1.0, sampling_seed=5)).json()
    assert len({tuple(answer["output_ids"]) for answer in answers}) == 3


def test_text_is_encoded(server):
    request = {"text": "go to shelf", "sampling_params": {"max_new_tokens": 2}}
    assert server.post("/generate", json=request).json()["meta_info"]["prompt_tokens"] == 3


def test_texts_of_tokens_come_when_asked_for(server):
    request = body() | {"return_text_in_logprobs": True}
    entries = server.post("/generate", json=request).json()["meta_info"]["output_token_logprobs"]
    assert all(isinstance(text, str) for _, _, text in entries)


@pytest.mark.parametrize(
    ("request_body", "word"),
    [
        (body(seed=3), "'seed'"),
        (body(max_tokens=3, seed=1), "'max_tokens', 'seed'"),
        (body(frequency_penalty=0.5), "frequency_penalty"),
        (body(stop="x"), "stop"),
        (body(top_k=0), "top_k"),
        (body(top_p=0), "top_p"),
        (body(temperature=-1), "temperature"),
        (body(max_new_tokens=0), "max_new_tokens"),
        (body(max_new_tokens="4"), "max_new_tokens"),
        (body(n=0), "sampling_params.n"),
        (body(stop_token_ids=[96]), "stop_token_ids"),
        (body(ids=[96]), "input_ids"),
        (body(ids=["a"]), "input_ids"),
        (body(ids=[]), "input_ids"),
        (body(ids=[5] * 3000), "longer than the model's context length"),
        (body() | {"text": "go"}, "only one"),
        ({"sampling_params": {}}, "should be provided"),
        (body() | {"stream": True}, "stream"),
        (body() | {"logprob_start_len": 0}, "logprob_start_len"),
        (body() | {"prompt": "go"}, "unknown field 'prompt'"),
        (body() | {"rid": 5}, "rid"),
        (body() | {"return_logprob": "yes"}, "return_logprob"),
        (body() | {"sampling_params": [{}, {}]}, "sampling_params"),
        ([1, 2], "object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_request_is_a_400_that_names_the_part(server, request_body, word):
    answer = server.post("/generate", json=request_body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]


def test_harmless_parameters_of_sglang_are_taken(server):
    ask(
        server, frequency_penalty=0.0, repetition_penalty=1.0, min_p=0.0, stop=None, spaces_between_special_tokens=False
    )


def test_what_is_no_json_is_a_400_and_what_is_too_long_a_413(server):
    assert server.post("/generate", content=b"{").status_code == 400
    assert server.post("/generate", content=b" " * 200_000).status_code == 413


def test_the_model_s_own_end_stops_a_turn_unless_ignored(server, folder):
    end = build_tokenizer(["go", "to", "shelf", "lamp"], MODEL.vocab_size).convert_tokens_to_ids(END)
    turns = [ask(server, ids=(n + 5,), temperature=1.5, max_new_tokens=300, sampling_seed=n) for n in range(4)]
    assert any(end in turn["output_ids"][:-1] for turn in turns)
    stopped = [
        ask(server, ids=(n + 5,), temperature=1.5, max_new_tokens=300, sampling_seed=n, ignore_eos=False)
        for n in range(4)
    ]
    assert not any(end in turn["output_ids"][:-1] for turn in stopped)
    assert any(turn["meta_info"]["finish_reason"] == {"type": "stop", "matched": end} for turn in stopped)


# The same as in process, and no more work.


def test_an_episode_prefills_its_new_tokens_only(server, process):
    """Eight episodes of six turns: what was prefilled is what was new, and not the growing history."""
    client = SglangEngine(HttpOptions((process.url,), api_key=KEY), vocab_size=96, max_length=3000)
    new, sampled, turns = 30, 12, 6

    async def play(number):
        rng, context = np.random.default_rng(number), ()
        for index in range(turns):
            context += tuple(rng.integers(5, 96, new).tolist())
            sampling = SamplingParams(sampled, seed=number)
            result = await client.generate(GenerateRequest(f"e{number}/{index}", f"e{number}", context, sampling))
            context += result.ids
        return len(context)

    async def play_all():
        return await asyncio.gather(*(play(number) for number in range(SLOTS)))

    before = server.get("/server_info").json()["internal_states"][0]
    with contextlib.closing(client):
        lengths = asyncio.run(play_all())
    after = server.get("/server_info").json()["internal_states"][0]
    prefilled = after["prefilled_tokens"] - before["prefilled_tokens"]
    # Each turn leaves out the prompt's last token, and takes the sampled ones of the turn before once more.
    assert prefilled <= sum(lengths)
    assert after["prompt_tokens"] - before["prompt_tokens"] > 3 * prefilled


def test_a_request_continues_the_session_that_holds_all_of_its_beginning():
    sessions = PrefixSessions(limit=3)
    sessions.release("short", (1, 2))
    sessions.release("long", (1, 2, 3, 4))
    sessions.release("other", (1, 2, 3, 9))
    assert sessions.claim((1, 2, 3, 4, 5)) == "long"
    assert sessions.claim((1, 2, 3, 4, 5)) == "short"  # the other may be still needed by its own episode
    assert sessions.claim((1, 2, 3)) not in ("other", "long", "short")
    for number in range(4):
        sessions.release(f"new-{number}", (number,))
    assert sessions.clear() == ["new-1", "new-2", "new-3"]


# Aborts and pauses.


def test_an_abort_answers_200_with_what_there_is(server, background):
    answer = background.submit(ask, server, rid="long", max_new_tokens=LONG)
    wait_until(lambda: running(server))
    assert server.post("/abort_request", json={"rid": "long"}).status_code == 200
    result = answer.result()
    meta = result["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert len(result["output_ids"]) == len(meta["output_token_logprobs"]) == meta["completion_tokens"] < LONG


def test_an_abort_ends_all_samples_of_a_request(server, background):
    request = body(rid="both", n=2, max_new_tokens=LONG)
    answer = background.submit(lambda: server.post("/generate", json=request).json())
    wait_until(lambda: running(server) == 2)
    server.post("/abort_request", json={"rid": "bot"})
    server.post("/abort_request", json={"rid": "both"})
    assert [one["meta_info"]["finish_reason"]["type"] for one in answer.result()] == ["abort", "abort"]


def test_an_abort_of_an_unknown_request_is_fine(server):
    assert server.post("/abort_request", json={"rid": "nobody"}).status_code == 200


def test_a_request_id_is_used_once_at_a_time(server, background):
    answer = background.submit(ask, server, rid="twice", max_new_tokens=LONG)
    wait_until(lambda: running(server))
    refused = server.post("/generate", json=body(rid="twice"))
    assert (refused.status_code, "Duplicate" in refused.text) == (400, True)
    server.post("/abort_request", json={"rid": "twice"})
    answer.result()


def test_a_pause_holds_requests_until_it_ends(server, background):
    assert server.post("/pause_generation", json={"mode": "in_place"}).json()["status"] == "ok"
    answer = background.submit(ask, server, rid="held")
    time.sleep(0.1)
    assert not answer.done()
    server.post("/continue_generation", json={})
    assert len(answer.result()["output_ids"]) == 4


def test_a_held_request_can_be_aborted(server, background):
    server.post("/pause_generation", json={"mode": "in_place"})
    answer = background.submit(ask, server, rid="held")
    wait_until(lambda: "sage_jax_live_requests 1.0" in server.get("/metrics").text)
    server.post("/abort_request", json={"rid": "held"})
    assert answer.result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_retracted_request_starts_anew_on_the_weights_after_the_pause(server, background, folder, tmp_path):
    make_folder(tmp_path, seed=1)
    answer = background.submit(ask, server, max_new_tokens=400)
    wait_until(lambda: running(server))
    server.post("/pause_generation", json={"mode": "retract"})
    update = {"model_path": str(tmp_path), "weight_version": "after"}
    assert server.post("/update_weights_from_disk", json=update).json()["success"]
    server.post("/continue_generation", json={})
    meta = answer.result()["meta_info"]
    assert meta["num_retractions"] == 1
    assert meta["weight_versions"] == [{"version": "after", "start": 0, "end": 400}]
    server.post("/update_weights_from_disk", json={"model_path": str(folder), "weight_version": "default"})


def test_in_place_marks_tokens_by_version(server, background, folder):
    for version in ("second", "third", "fourth"):  # a pause may come before the first token: then there is one span
        answer = background.submit(ask, server, max_new_tokens=LONG)
        wait_until(lambda: running(server))
        time.sleep(0.1)
        server.post("/pause_generation", json={"mode": "in_place"})
        server.post("/update_weights_from_disk", json={"model_path": str(folder), "weight_version": version})
        server.post("/continue_generation", json={})
        spans = answer.result()["meta_info"]["weight_versions"]
        assert [span["version"] for span in spans][-1] == version
        if len(spans) == 2:
            break
    assert len(spans) == 2
    assert spans[0]["end"] == spans[1]["start"]
    assert spans[1]["end"] == LONG


@pytest.mark.parametrize("path", ["/pause_generation", "/abort_request", "/update_weights_from_disk"])
def test_a_control_call_without_an_object_is_a_400(server, path):
    assert server.post(path, json=[1]).status_code == 400


def test_an_unknown_pause_is_a_400(server):
    assert server.post("/pause_generation", json={"mode": "softly"}).status_code == 400


def test_a_client_that_goes_away_frees_its_slot(server):
    with pytest.raises(httpx.ReadTimeout):
        server.post("/generate", json=body(max_new_tokens=LONG), timeout=0.1)
    wait_until(lambda: running(server) == 0)


# Weights and cache.


def test_weights_from_disk_change_version_and_tokens(server, folder, tmp_path):
    make_folder(tmp_path, seed=2)
    old = ask(server, max_new_tokens=20)["output_ids"]
    answer = server.post("/update_weights_from_disk", json={"model_path": str(tmp_path), "weight_version": "7"}).json()
    assert answer == {"success": True, "message": answer["message"], "num_paused_requests": 0}
    assert server.get("/model_info").json()["weight_version"] == "7"
    assert server.get("/get_model_info").json()["model_path"] == str(tmp_path)
    assert ask(server, max_new_tokens=20)["output_ids"] != old
    server.post("/update_weights_from_disk", json={"model_path": str(folder), "weight_version": "default"})
    assert ask(server, max_new_tokens=20)["output_ids"] == old


def test_a_bad_folder_is_a_400_and_the_old_weights_stay(server, tmp_path):
    before = server.get("/model_info").json()["weight_version"]
    answer = server.post("/update_weights_from_disk", json={"model_path": str(tmp_path), "weight_version": "8"})
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert server.get("/model_info").json()["weight_version"] == before
    ask(server)


def test_an_update_without_a_pause_waits_for_running_turns(server, background, folder):
    answer = background.submit(ask, server, max_new_tokens=1000)
    wait_until(lambda: running(server))
    server.post("/update_weights_from_disk", json={"model_path": str(folder), "weight_version": "later"})
    assert len(answer.result()["meta_info"]["weight_versions"]) == 1
    assert ask(server)["meta_info"]["weight_version"] == "later"


def test_flushing_empties_the_cache_and_fails_while_turns_run(server, background):
    ids = list(range(5, 45))
    context = ids + ask(server, ids=ids)["output_ids"]
    assert ask(server, ids=[*context, 5])["meta_info"]["cached_tokens"] == 39
    assert server.get("/flush_cache").status_code == 200
    assert ask(server, ids=[*context, 5])["meta_info"]["cached_tokens"] == 0
    answer = background.submit(ask, server, rid="busy", max_new_tokens=LONG)
    wait_until(lambda: running(server))
    assert server.post("/flush_cache").status_code == 400
    server.post("/abort_request", json={"rid": "busy"})
    answer.result()


def test_old_weight_folders_are_removed(folder, tmp_path):
    model, params = hf.load(folder)
    folders = WeightFolders(tmp_path, model, source=folder, keep=2)
    written = [folders(params, version) for version in (4, 1_000_000, 5)]
    assert [path.is_dir() for path in written] == [False, True, True]
    assert (written[-1] / "tokenizer.json").is_file()
    with pytest.raises(ConfigError, match="keep=0"):
        WeightFolders(tmp_path, model, keep=0)


# Chat, information, metrics.


def test_chat_answers_as_openai_does(server):
    request = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "go to shelf"}],
        "max_tokens": 5,
        "temperature": 0,
        "logprobs": True,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    answer = server.post("/v1/chat/completions", json=request).json()
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert answer["usage"] == answer["usage"] | {"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 11}
    assert len(choice["logprobs"]["content"]) == 5
    plain = ask(server, ids=choice["prompt_token_ids"], max_new_tokens=5)
    assert plain["output_ids"] == choice["response_token_ids"]
    assert answer["metadata"]["weight_version"] == plain["meta_info"]["weight_version"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": "go"},
        {"stream": True},
        {"mood": 1},
        [1],
        {"input_ids": "go"},
    ],
)
def test_a_wrong_chat_request_is_a_400(server, wrong):
    assert server.post("/v1/chat/completions", json=wrong).status_code == 400


def test_information(server, folder):
    assert server.get("/health").status_code == server.get("/health_generate").status_code == 200
    assert server.get("/v1/models").json()["data"][0]["id"] == "tiny"
    info = server.get("/get_server_info").json()
    assert (info["context_length"], info["max_running_requests"]) == (3000, SLOTS)


def test_metrics_count_tokens_and_answers(server):
    def value(name):
        lines = [line for line in server.get("/metrics").text.splitlines() if line.startswith(name)]
        return float(lines[0].split()[-1])

    before = value("sage_jax_engine_generated_tokens_total")
    ask(server, max_new_tokens=9)
    assert value("sage_jax_engine_generated_tokens_total") == before + 9
    assert value('sage_jax_http_answers_total{path="/generate",status="200"}') >= 1


# Limits, keys, its end.


def test_too_many_requests_are_a_503_with_retry_after(server, background):
    server.post("/pause_generation", json={"mode": "in_place"})
    answers = [background.submit(ask, server) for _ in range(24)]
    wait_until(lambda: "sage_jax_live_requests 24.0" in server.get("/metrics").text)
    refused = server.post("/generate", json=body())
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    server.post("/continue_generation", json={})
    assert all(len(answer.result()["output_ids"]) == 4 for answer in answers)


def test_adapters_are_not_offered(process):
    client = SglangEngine(HttpOptions((process.url,), api_key=KEY), vocab_size=96, max_length=3000)
    with contextlib.closing(client), pytest.raises(ServerRefusedError, match="404"):
        client.load_lora_adapter("adapter", "folder")


@pytest.mark.parametrize("port", [99999, -1])
def test_a_port_that_there_is_none_of_is_one_clear_line(port):
    with pytest.raises(SystemExit, match=f"ConfigError: --host=127.0.0.1 --port={port}"):
        main(["--model", "nowhere", "--port", str(port)])


def test_other_hosts_need_a_key():
    with pytest.raises(ConfigError, match="--api-key"):
        bind("0.0.0.0", 0, "")
    bind("127.0.0.1", 0, "").close()


def test_a_key_is_asked_for_except_by_probes(process):
    assert httpx.get(process.url + "/health", trust_env=False).status_code == 200
    assert httpx.get(process.url + "/metrics", trust_env=False).status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
        answer = httpx.post(process.url + "/generate", json=body(), headers=headers, trust_env=False)
        assert answer.status_code == 401


def test_a_missing_model_is_one_clear_line():
    with pytest.raises(SystemExit, match="ConfigError: --model=nowhere"):
        main(["--model", "nowhere", "--port", "0"])


def test_a_missing_key_is_one_clear_line():
    with pytest.raises(SystemExit, match="ConfigError: --api-key-env='NOT_THERE'"):
        main(["--model", "nowhere", "--api-key-env", "NOT_THERE"])


@pytest.mark.parametrize("key", ["a\nb", " "])
def test_a_key_that_no_header_carries_is_refused_and_not_told(key):
    with pytest.raises(SystemExit, match="ConfigError: --api-key: the key has a line break"):
        main(["--model", "nowhere", "--api-key", key])


def test_limits_must_be_counts(capsys):
    for name in ("--max-queued-requests", "--max-body-bytes", "--grace"):
        with pytest.raises(SystemExit):
            main(["--model", "nowhere", name, "0"])
        assert f"argument {name}: 0: must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_sigterm_lets_running_turns_end(arguments, background):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ServerProcess("sage_jax.rollout.server", *arguments))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, trust_env=False))
        answer = background.submit(ask, client, max_new_tokens=1500)
        wait_until(lambda: running(client))
        assert server.terminate() == 0
        assert len(answer.result()["output_ids"]) == 1500


@pytest.mark.slow
def test_a_request_that_outlasts_the_grace_is_answered_in_json(arguments, background):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ServerProcess("sage_jax.rollout.server", *arguments, "--grace", "1"))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, trust_env=False))
        client.post("/pause_generation", json={"mode": "in_place"})
        answer = background.submit(client.post, "/generate", json=body())
        wait_until(lambda: "sage_jax_live_requests 1.0" in client.get("/metrics").text)
        assert server.terminate() == 0
        assert answer.result().status_code == 503
        assert answer.result().json()["error"]["message"] == "the server shuts down"


# A whole run on it.


@pytest.mark.slow
def test_a_run_samples_on_a_server(tiny_folder, tiny_cache, tmp_path):
    """Cold start, rounds, probes and evaluations with engine=http and the server in another process."""
    from sage_jax.testing.tiny import tiny_settings
    from sage_jax.training.loop import train

    sizes = server_arguments(slots=16, max_length=1024)
    with ServerProcess("sage_jax.rollout.server", "--model", str(tiny_folder), *sizes) as server:
        where = {"engine": "http", "engine_urls": (server.url,)}
        folder = train(tiny_settings(tmp_path / "run", tiny_folder, tiny_cache, **where))
        state = httpx.get(server.url + "/server_info", trust_env=False).json()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    gaps = [line["loss/engine_gap_max"] for line in lines if "loss/engine_gap_max" in line]
    assert len(gaps) == 2
    assert 0 < max(gaps) < 1e-4  # trainer and server, both float32, on the same weights
    assert state["weight_version"].endswith("-1000003")  # that of the last evaluation, after two rounds
    assert state["internal_states"][0]["cached_tokens"] > 0
    assert len(list((folder / "weights").iterdir())) == 2
