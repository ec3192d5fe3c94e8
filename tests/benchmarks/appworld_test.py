"""AppWorld's benchmarks: tasks by split, sizes, the scripted programmer, and what is refused."""

import asyncio
import random

import pytest

from sage_jax.agents.coder import CodeDemonstrator, document_lookups
from sage_jax.benchmarks.appworld import Appworld, AppworldLite, AppworldSettings
from sage_jax.benchmarks.base import plays_code
from sage_jax.data.code_episodes import code_episodes
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import ConfigError, DataError, SandboxError
from sage_jax.sandbox import choose_backend

SOLUTION = {"Count it.": ("def open_app(app):\n    return apis[app]\n\ndef f():\n    return apis.todoist.x()", "f()")}


@pytest.fixture
def lite(tmp_path):
    return AppworldLite(AppworldSettings(lite_train=1, lite_test=2), "auto", tmp_path)


def test_lite_splits_have_the_sizes_that_are_asked_for(lite):
    tasks = lite.load(("train", "test_normal"), lambda done, total: None)
    assert {split: len(found) for split, found in tasks.items()} == {"train": 3 * 17, "test_normal": 3 * 2}
    assert plays_code(lite)
    assert [lite.size_key(split) for split in lite.splits] == ["lite_train", "lite_dev", "lite_test", "lite_challenge"]


def test_official_tasks_need_the_engine_and_their_root(tmp_path, monkeypatch):
    monkeypatch.delenv("APPWORLD_ROOT", raising=False)
    with pytest.raises(ConfigError, match="need the engine"):
        AppworldLite(AppworldSettings(), "official", tmp_path).load(("train",), lambda done, total: None)
    with pytest.raises(ConfigError, match="APPWORLD_ROOT"):
        Appworld(AppworldSettings(), "official", tmp_path).load(("train",), lambda done, total: None)
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path))
    with pytest.raises(DataError, match="lists no tasks"):
        Appworld(AppworldSettings(), "auto", tmp_path).load(("train",), lambda done, total: None)


def test_the_programmer_looks_up_defines_and_completes_or_calls_what_it_has():
    seen = set()
    for seed in range(12):
        expert = CodeDemonstrator("Count it.\n\nMy name is A B (x, y).", SOLUTION, random.Random(seed))
        turns = list(iter(expert.act, None))
        assert turns[-1] == "apis.supervisor.complete_task(answer=answer)"
        if expert.programs:
            assert [program.name for program in expert.programs] == ["open_app", "f"]
            assert turns[:-1] == ["answer = f()\nprint(answer)"]
        else:
            assert turns[0] == "print(apis.api_docs.show_api_descriptions(app_name='todoist'))"
            assert turns[1].endswith("answer = f()\nprint(answer)")
        seen.add(bool(expert.programs))
    assert seen == {True, False}
    assert document_lookups("apis.phone.a(apis.simple_note.b, apis.supervisor.c)") == tuple(
        f"print(apis.api_docs.show_api_descriptions(app_name={app!r}))" for app in ("phone", "simple_note")
    )
    with pytest.raises(DataError, match="no scripted solution"):
        CodeDemonstrator("Fly.", SOLUTION, random.Random(0))


def test_the_cold_start_is_played_in_real_shells(lite):
    try:
        choose_backend()
    except SandboxError as error:
        pytest.skip(str(error))
    tasks = lite.load(("train",), lambda done, total: None)["train"]
    with EnvPool(lite.factory(), workers=1) as pool:
        found = asyncio.run(code_episodes(pool, tasks, 6, lite.demonstrator, seed=0, guide=False))
    assert len(found) == 6  # the expert solves all
    assert {"You have these functions:" in messages[0][1] for messages in found} == {True, False}
    for messages in found:
        assert [role for role, _, _ in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert "complete_task" in messages[-1][1]
