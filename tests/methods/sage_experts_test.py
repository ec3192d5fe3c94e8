"""Expert conversations from an endpoint, over real sockets and real shells: kept, rejected, lost and resumed."""

import asyncio
import json

import pytest

from sage_jax.agents.llm_coder import LlmCoder
from sage_jax.benchmarks.appworld import _lite_solutions
from sage_jax.data.sft_sets import open_set
from sage_jax.envs.appworld.lite.env import AppworldLiteFactory, load_lite_tasks
from sage_jax.envs.appworld.twin.world import WorldOptions
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import BudgetError, SandboxError
from sage_jax.methods.sage_experts import ExpertSet, collect
from sage_jax.rollout.openai_llm import OpenAiLlm, OpenAiOptions
from sage_jax.rollout.task_llm import Budget
from sage_jax.sandbox import choose_backend
from sage_jax.testing.chat_server import ChatServer
from sage_jax.training.evaluate_chains import scenario_chains

WORLD = WorldOptions(train=1)
COMPLETE = "<action>\napis.supervisor.complete_task(answer=answer)\n</action>"


@pytest.fixture(scope="module")
def pool():
    try:
        choose_backend()
    except SandboxError as error:
        pytest.skip(str(error))
    with EnvPool(AppworldLiteFactory(timeout_s=5.0), workers=1) as made:
        yield made


@pytest.fixture(scope="module")
def chains():
    return scenario_chains(load_lite_tasks(WORLD)["train"], 0)[:2]


def expert(body) -> str:
    """Defines where nothing is shown, else calls; then completes."""
    messages = body["messages"]
    if len(messages) > 1:
        return COMPLETE
    opening = messages[0]["content"]
    instruction = opening.partition("\n\nMy name is ")[0].rsplit("\n\n", 1)[-1]
    functions, call = _lite_solutions(WORLD)[instruction]
    work = f"answer = {call}\nprint(answer)"
    return (
        f"Call it.\n```python\n{work}\n```"
        if "You have these functions:" in opening
        else (f"Define it.\n<action>\n{functions}\n\n{work}\n</action>")
    )


def run(pool, chains, path, script, *, tries=2, tokens=0):
    with ChatServer(script) as server:
        llm = OpenAiLlm(OpenAiOptions(server.url, "m", retries=0), Budget(tokens=tokens))

        async def go():
            found = ExpertSet(path, chains)
            try:
                await collect(
                    LlmCoder(llm, pool, max_steps=4), chains, found, tries=tries, seed=0, temperature=0.5, concurrency=1
                )
            finally:
                await llm.close()
            return found

        return asyncio.run(go()), len(server.bodies)


def test_solved_scenarios_become_an_sft_set_and_are_not_asked_for_again(pool, chains, tmp_path):
    path = tmp_path / "experts.jsonl"
    found, asked = run(pool, chains, path, expert)
    assert found.kept == {chain.key for chain in chains}
    assert asked == 2 * 3 * 2  # two turns a task
    conversations = open_set(str(path))
    assert len(conversations) == 6
    first, second = conversations[0], conversations[1]
    assert [(role, trained) for role, _, trained in first] == [
        ("user", False), ("assistant", True), ("user", False), ("assistant", True),
    ]  # fmt: skip
    assert "complete_task(answer=...)" in first[0][1]  # the guide
    assert "You have these functions:" not in first[0][1]
    assert "You have these functions:" in second[0][1]  # what the first task made
    assert "def " not in second[1][1]
    assert run(pool, chains, path, expert)[1] == 0


def test_a_scenario_that_is_not_solved_whole_is_rejected(pool, chains, tmp_path):
    def lazy(body):
        return "I am done." if body["messages"][0]["content"].count("You have these functions:") else expert(body)

    path = tmp_path / "experts.jsonl"
    found, asked = run(pool, chains[:1], path, lazy)
    assert not found.kept
    assert path.read_text() == ""
    assert asked == 2 * (2 + 1 + 1)  # the first task solved, the others given up, twice
    assert [json.loads(line)["kept"] for line in (tmp_path / "experts.jsonl.tried").read_text().splitlines()] == [
        False
    ] * 2
    assert run(pool, chains[:1], path, expert, tries=2)[1] == 0  # both tries are used up
    assert run(pool, chains[:1], path, expert, tries=3)[0].kept


def test_what_a_kill_left_is_mended(pool, chains, tmp_path):
    path = tmp_path / "experts.jsonl"
    run(pool, chains, path, expert)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:50])  # the second scenario is cut in its second task
    (tmp_path / "experts.jsonl.tried").unlink()
    found, asked = run(pool, chains, path, expert)
    assert len(found.kept) == 2
    assert asked == 6
    assert len(open_set(str(path))) == 6


def test_an_endpoint_that_fails_costs_no_try(pool, chains, tmp_path):
    found, _ = run(pool, chains[:1], tmp_path / "experts.jsonl", lambda body: 500, tries=1)
    assert not found.kept
    assert found.attempts == {}


def test_a_budget_ends_it(pool, chains, tmp_path):
    with pytest.raises(BudgetError):
        run(pool, chains, tmp_path / "experts.jsonl", expert, tokens=1)
