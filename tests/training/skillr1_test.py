"""A whole run of Skill-R1: editor, follower, generated sites, update, evaluation, banks; and one that goes on."""

import asyncio
import dataclasses
import hashlib
import json
import pathlib
import threading

import jax
import numpy as np
import pytest

from sage_jax import config
from sage_jax.metrics.evaluation import read_rows
from sage_jax.models.transformer import init_params
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.engine_llm import EngineLlm
from sage_jax.rollout.programs import EngineConfig
from sage_jax.rollout.task_llm import ChatRequest
from sage_jax.seeding import jax_key
from sage_jax.settings import RunSettings
from sage_jax.testing.chat_server import ChatServer
from sage_jax.testing.tiny import MODEL
from sage_jax.training.editor_model import EditorModelSettings, make_editor_model
from sage_jax.training.loop import train

ROOT = pathlib.Path(__file__).parents[2]
SMALL = {
    "sites_train": 1,
    "sites_test": 1,
    "eval_episodes": 2,
    "tasks_per_round": 2,
    "generations": 2,
    "siblings": 2,
    "skill_rollouts": 2,
    "env_workers": 1,
    "slots": 4,
    "rows_per_micro": 4,
    "min_micro": 2,
    "rounds": 1,
}


@pytest.fixture(scope="module")
def editor_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("editor")
    values = make_editor_model(EditorModelSettings(updates=3, rows=4, row_length=256), folder)
    assert values["sft/loss"] > 0
    return folder


def settings(run_dir, editor, cache, **values) -> RunSettings:
    loaded = config.load_config(str(ROOT / "configs" / "skillr1_webwalker.py") + ":smoke")
    places = {"run_dir": str(run_dir), "model": str(editor), "cache": str(cache)}
    with loaded.unlocked():
        loaded.update({**SMALL, **places, **values})
    return config.to_dataclass(loaded, RunSettings)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_and_its_continuation(tmp_path, editor_folder, tiny_cache):
    folder = tmp_path / "run"
    train(settings(folder, editor_folder, tiny_cache))
    banks = [json.loads(line) for line in (folder / "banks" / "000001.jsonl").read_text().splitlines()]
    assert len(banks) == 2
    assert [len(siblings) for siblings in banks[0]["generations"]] == [2, 2]
    rows = read_rows(folder / "eval" / "before.json")
    assert {row.retrieval for row in rows} == {True, False}
    curve = json.loads((folder / "generations" / "after.json").read_text())["test"]
    assert [point["generation"] for point in curve] == [0, 1, 2]
    train(settings(folder, editor_folder, tiny_cache, rounds=2))
    names = {name for line in metrics(folder) for name in line}
    assert {"generation/2/reward", "skill/written", "advantage/skill_std", "task_llm/tokens"} <= names
    assert (folder / "banks" / "000002.jsonl").is_file()


@pytest.mark.slow
def test_literal_without_lambda_leaves_the_editor_as_it_was(tmp_path, editor_folder, tiny_cache):
    folder = tmp_path / "run"
    train(settings(folder, editor_folder, tiny_cache, generation_mode="literal", siblings=1, inter_coef=0.0))
    last = metrics(folder)[-1] | {name: value for line in metrics(folder) for name, value in line.items()}
    assert last["update/sequences"] == 0
    assert last["update/steps"] == 0


def digest(params) -> str:
    leaves = jax.tree.leaves(jax.device_get(params))
    return hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)).hexdigest()


@pytest.fixture
def frozen_model(word_tokenizer):
    """A model behind a socket: (its parameters, script that answers a question with its text)."""
    model = dataclasses.replace(MODEL, max_position=2048)  # pages are longer than its own prompts
    params = init_params(model, jax_key(0, "frozen"))
    engine = EmbeddedEngine(model, params, EngineConfig(num_slots=4, max_length=2048))
    llm, loop = EngineLlm(engine, word_tokenizer), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def answer(body):
        request = ChatRequest(tuple(body["messages"]), max_tokens=4, seed=body.get("seed", 0))
        return asyncio.run_coroutine_threadsafe(llm.complete(request), loop).result(120).text

    yield params, answer
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    engine.close()


@pytest.mark.slow
def test_the_task_llm_gives_text_alone_and_its_weights_stay_as_they_were(
    tmp_path, editor_folder, tiny_cache, frozen_model
):
    params, answer = frozen_model
    before, editor = digest(params), (editor_folder / "model.safetensors").read_bytes()
    with ChatServer(answer) as server:
        endpoint = {"task_llm": "endpoint", "task_url": server.url, "task_model": "frozen", "max_steps": 2}
        train(settings(tmp_path / "run", editor_folder, tiny_cache, kl_coef=0.1, **endpoint))
    values = {name: value for line in metrics(tmp_path / "run") for name, value in line.items()}
    assert values["update/steps"] == 2  # the editor was updated, in two passes
    assert digest(params) == before
    assert (editor_folder / "model.safetensors").read_bytes() == editor
    assert set(server.paths) == {"/v1/chat/completions"}
    for body in server.bodies:
        assert not {"logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids"} & body.keys()
        assert all(isinstance(message["content"], str) for message in body["messages"])
