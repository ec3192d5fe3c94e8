import pickle
import textwrap

import pytest

from sage_jax.envs.appworld.lite.env import AppworldLiteFactory, load_lite_tasks
from sage_jax.envs.appworld.lite.state import same_answer
from sage_jax.errors import ConfigError, DataError, EnvError, SandboxError
from sage_jax.sandbox import choose_backend
from sage_jax.types import Task


@pytest.fixture(scope="module")
def env():
    try:
        choose_backend()
    except SandboxError as error:
        pytest.skip(str(error))
    env = AppworldLiteFactory(timeout_s=5.0)()
    yield env
    env.close()


@pytest.fixture(scope="module")
def tasks():
    return load_lite_tasks()


@pytest.mark.parametrize(("split", "index"), [("train", 0), ("train", 60), ("test_challenge", 33)])
def test_the_expert_wins(env, tasks, split: str, index: int):
    task = tasks[split][index]
    observation = env.reset(task, 0, expert=True)
    assert observation.info["task"] in observation.text
    action, steps = observation.info["expert_action"], 0
    while action is not None:
        result = env.step(action)
        assert not result.info["failed"], result.text
        action, steps = result.info["expert_action"], steps + 1
    assert (result.done, result.won, result.reward, steps) == (True, True, 1.0, 2)
    with pytest.raises(EnvError, match="reset"):
        env.step("1")


def test_names_are_kept_and_failures_are_told(env, tasks):
    env.reset(tasks["train"][0], 0)
    assert env.step("x = 20").text == "Execution successful."
    assert env.step("print(x + 1)").text == "21\n"
    failed = env.step("def f():\n    return y\nf()")
    assert failed.info["failed"]
    assert failed.text.startswith("Execution failed. Traceback:\n")
    assert "NameError" in failed.text
    assert "return y" in failed.text
    assert "guest" not in failed.text
    assert "Syntax error in line:" in env.step("for i in").text
    assert "not authorized" in env.step("apis.simple_note.search_notes(access_token='x')").text
    assert "no API 'fly'" in env.step("apis.simple_note.fly()").text
    assert "missing a required argument" in env.step("apis.simple_note.show_note()").text
    assert env.step("print(x)").text == "20\n"
    lost = env.step("apis.supervisor.complete_task(status='fail')")
    assert (lost.done, lost.won, lost.reward) == (True, False, 0.0)


def test_an_episode_starts_afresh(env, tasks):
    env.reset(tasks["train"][0], 0)
    env.step("x = 1")
    env.reset(tasks["train"][0], 0)
    assert "NameError" in env.step("x").text


def test_code_that_kills_its_shell_costs_its_turn(env, tasks):
    env.reset(tasks["train"][0], 0)
    assert "All names are lost" in env.step("import os\nos._exit(0)").text
    assert env.step("print(1)").text == "1\n"
    forge = """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'{"ran": 1}\\n')
            except OSError:
                pass
    """
    assert "All names are lost" in env.step(textwrap.dedent(forge)).text
    assert env.step("print(2)").text == "2\n"


def test_what_the_code_may_not_see(env, tasks):
    """The right answer and the checks are on the host; the sandbox holds neither them nor the host's files."""
    env.reset(tasks["train"][0], 0)
    assert "Error" in env.step(f"open({__file__!r})").text
    text = env.step("import gc\nprint([o for o in gc.get_objects() if 'answer' in str(type(o))])").text
    assert text == "[]\n"


def test_long_output_is_cut(env, tasks):
    env.reset(tasks["train"][0], 0)
    text = env.step("print('x' * 10000)").text
    assert len(text) < 4100
    assert text.endswith("more characters]")


def test_a_task_of_another_world_is_refused(env, tasks):
    with pytest.raises(DataError, match="'nope_1'"):
        env.reset(Task("nope_1", "appworld_lite", "train", "x", tasks["train"][0].payload), 0)


def test_a_factory_travels():
    assert pickle.loads(pickle.dumps(AppworldLiteFactory(timeout_s=3.0))) == AppworldLiteFactory(timeout_s=3.0)
    with pytest.raises(ConfigError, match="timeout_s"):
        AppworldLiteFactory(timeout_s=0)


@pytest.mark.parametrize(
    ("given", "right", "same"),
    [
        (3, 3, True),
        ("3", 3, True),
        (3.0, "3", True),
        (4, 3, False),
        (" Blue Note ", "blue note", True),
        (None, None, True),
        ("x", None, False),
        (None, 0, False),
        (0, None, False),
        ([1], 1, False),
    ],
)
def test_answers(given, right, same: bool):
    assert same_answer(given, right) == same
