"""The GAIA twin: experts, levels, kinds of answers, splits, files; and what an agent meets."""

import collections
import pickle

import pytest

from sage_jax.envs.gaia import GaiaFactory, TwinOptions, make_tasks, question_score
from sage_jax.envs.gaia.worlds import FORMATS, WorldSpec, make_world
from sage_jax.errors import ConfigError, DataError, EnvError
from sage_jax.tools import ToolFailure, ToolOutcome
from sage_jax.tools.files import FileReader
from sage_jax.types import Task

OPTIONS = TwinOptions(seed=4, train=3, valid=1, test=1)


class Arithmetic:
    """Runs `print(expression)` of numbers: enough python for the expert, and nothing else."""

    def __call__(self, code):
        expression = code.removeprefix("print(").removesuffix(")")
        if set(expression) - set("0123456789 +-*/()abs"):
            raise ToolFailure(ToolOutcome.FAILED, "no such program")
        return str(eval(expression, {"__builtins__": {}, "abs": abs}))  # noqa: S307


@pytest.fixture(scope="module", params=["python", "no python"])
def factory(request):
    factory = GaiaFactory(python=Arithmetic() if request.param == "python" else None)
    yield factory
    factory.close()


CALLS = {1: (1, 1), 2: (2, 4), 3: (5, 20)}


def test_the_expert_answers_every_question_in_the_calls_of_its_level(factory):
    env, kinds = factory(), collections.Counter()
    for task in [task for split in make_tasks(OPTIONS).values() for task in split]:
        action, calls, seen = env.reset(task, 0, expert=True).info["expert_action"], 0, []
        while not action.startswith("answer["):
            result = env.step(action)
            assert result.info["outcome"] == "ok", (task.id, action, result.text)
            seen.append(result.text)
            action, calls = result.info["expert_action"], calls + 1
        least, most = CALLS[task.payload["level"]]
        assert least <= calls <= most
        assert env.step(action).won
        if task.payload["kind"] == "string":
            assert task.payload["answer"] in "\n".join(seen)  # what was read holds the answer
        kinds[task.family, task.payload["kind"]] += 1
    assert len(kinds) == 9
    assert set(kinds.values()) == {5}


def test_answers_are_of_the_scorers_kinds():
    for task in make_tasks(OPTIONS)["train"]:
        answer = task.payload["answer"]
        assert question_score(answer, answer)
        assert answer.lstrip("-").isdigit() == (task.payload["kind"] == "number")
        assert ("," in answer) == (task.payload["kind"] == "list")


def test_what_an_agent_sees():
    factory = GaiaFactory()
    env = factory()
    task = next(t for t in make_tasks(OPTIONS)["train"] if t.family == "level2")
    first = env.reset(task, 0)
    assert first.text.startswith(f"Question: {task.payload['question']}\n\nFiles: staff.")
    assert [tool["function"]["name"] for tool in first.info["tools"]] == ["search", "read_file", "open_page", "find"]
    assert env.step("open_page[http://169.254.169.254/]").info["outcome"] == "refused"
    assert env.step("read_file[/etc/passwd]").info["outcome"] == "not_found"
    assert env.step("read_file[../../etc/passwd]").info["outcome"] == "not_found"
    assert env.step("search[the]").info["outcome"] == "not_found"
    assert env.step("python[print(1)]").info["outcome"] == "unknown_tool"
    wrong = env.step("answer[no idea]")
    assert (wrong.done, wrong.won, wrong.reward) == (True, False, 0.0)
    with pytest.raises(EnvError, match="call reset"):
        env.step("find[x]")
    factory.close()


def test_questions_of_a_users_copy(tmp_path):
    factory = GaiaFactory()
    env = factory()
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    payload = {"question": "What is y?", "answer": "2", "level": 1, "files": {"a.csv": str(tmp_path / "a.csv")}}
    first = env.reset(Task("g", "gaia", "validation", "level1", payload), 0)
    assert "Files: a.csv" in first.text
    assert env.step("read_file[a.csv]").text == "x | y\n1 | 2"
    assert env.step("open_page[http://127.0.0.1:1/]").info["outcome"] == "refused"  # not public
    assert env.step("open_page[http://localhost/]").info["outcome"] == "refused"
    assert env.step("answer[2.0]").won
    env.reset(Task("h", "gaia", "test", "level1", {"question": "?", "answer": None}), 0)
    hidden = env.step("answer[2]")
    assert (hidden.won, hidden.info["graded"]) == (False, False)
    with pytest.raises(DataError, match="needs question and answer"):
        env.reset(Task("i", "gaia", "test", "level1", {}), 0)
    factory.close()


def test_splits_share_no_world_and_worlds_repeat():
    tasks = make_tasks(OPTIONS)
    keys = {split: {str(task.payload["world"]) for task in tasks[split]} for split in tasks}
    assert not keys["train"] & keys["test"]
    assert make_tasks(OPTIONS) == tasks
    assert make_world(WorldSpec(0, 0)) != make_world(WorldSpec(1, 0))
    assert pickle.loads(pickle.dumps(GaiaFactory(page_chars=9))) == GaiaFactory(page_chars=9)


@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_every_format_hold_the_facts(tmp_path, kind):
    world = make_world(WorldSpec(0, 0, (kind,)))
    reader = FileReader(world.write_files(tmp_path))
    staff = reader.read_file(f"staff.{kind}")
    for person in world.people:
        assert person.name in staff
        assert str(person.age) in staff


def test_refusals():
    with pytest.raises(ConfigError, match="formats contains 'exe'"):
        TwinOptions(formats=("exe",))
    with pytest.raises(ConfigError, match="valid=-2"):
        TwinOptions(valid=-2)
    with pytest.raises(DataError, match="expected seed, index, formats and layout"):
        WorldSpec.read({"seed": 1})
