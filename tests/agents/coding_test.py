"""An agent that writes code, in real sandboxed shells of the lite world: what is loaded, kept, counted and recorded."""

import asyncio

import pytest

from sage_jax.agents.code_prompts import code_opening, code_text
from sage_jax.agents.coding import CodePlayer
from sage_jax.agents.episode import AgentOptions, EpisodePlan
from sage_jax.agents.parsing import Flag, parse_code
from sage_jax.data.sft import text_encoder
from sage_jax.envs.appworld.lite.env import AppworldLiteFactory, load_lite_tasks
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import SandboxError
from sage_jax.rewards import ActShaping, OutcomeConfig
from sage_jax.sandbox import choose_backend
from sage_jax.skills import RetrievalConfig, SkillBank
from sage_jax.skills.programs import Program
from sage_jax.testing.engines import ScriptedEngine
from sage_jax.types import Status

FREE = ActShaping(**dict.fromkeys(("not_admissible", "truncated", "no_action", "no_think", "empty", "repetition"), 0.0))
COMPLETE = code_text("apis.supervisor.complete_task(answer=answer)")
GOOD = Program("three", "def three(x=2):\n    return x + 1")
BAD = Program("broken", "def broken(x=missing):\n    return x")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<action>\nX = 1\nprint(X)\n</action>", "X = 1\nprint(X)"),
        ("<action>print('Garden  Rope')</action>", "print('Garden  Rope')"),  # to the letter: case and spaces
        ("<think>use <action>a</action></think><action>\nif x:\n    y()\n</action>", "if x:\n    y()"),
        ("Let me look.\n```python\nprint(1)\n```\nand then", "print(1)"),
        ("<action>\n```python\nprint(1)\n```\n</action>", "print(1)"),
        ("<action>\n    indented()\n</action>", "    indented()"),
    ],
)
def test_code_is_read_to_the_letter(text, code):
    assert parse_code(text).action == code


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("I am done.", Flag.NO_ACTION),
        ("<action>\nprint(1)", Flag.NO_ACTION),
        ("```python\nprint(1)", Flag.NO_ACTION),
        ("", Flag.EMPTY),
        ("<action>\n\n</action>", Flag.EMPTY),
    ],
)
def test_a_turn_without_code(text, flag):
    parse = parse_code(text, truncated=True)
    assert parse.action is None
    assert {flag, Flag.TRUNCATED} <= parse.flags


def test_of_two_pieces_of_code_the_first_counts():
    parse = parse_code("<action>a()</action> then <action>b()</action>")
    assert parse.action == "a()"
    assert Flag.MANY_ACTIONS in parse.flags


def test_the_first_message_shows_functions_with_their_imports():
    program = Program("f", "def f():\n    return math.pi", ("import math",))
    text = code_opening("Do it.", [program, GOOD], guide=True)
    assert text.index("complete_task") < text.index("import math\ndef f()") < text.index("def three") < text.index("Do")
    assert code_opening("Do it.", []) == "Do it."


@pytest.fixture(scope="module")
def pool():
    try:
        choose_backend()
    except SandboxError as error:
        pytest.skip(str(error))
    with EnvPool(AppworldLiteFactory(timeout_s=5.0), workers=1) as made:
        yield made


@pytest.fixture(scope="module")
def lite_task():
    return load_lite_tasks()["train"][0]


@pytest.fixture
def play(pool, lite_task, chatml_tokenizer):
    """Returns (what the model says turn by turn, programs, credit) -> (trajectory, prompts)."""

    def run(script, programs=None, credit="trace", task=lite_task, bank=None, **options):
        engine = ScriptedEngine(chatml_tokenizer, script, max_length=20000)
        player = CodePlayer(
            engine,
            pool,
            chatml_tokenizer,
            AgentOptions(act_tokens=4000, **options),
            encode=text_encoder(chatml_tokenizer),
            retrieval=RetrievalConfig(),
            shaping=FREE,
            outcome=OutcomeConfig(scale=1.0),
        )
        plan = EpisodePlan(task, "g", 3, bank=bank, programs=programs, credit=credit)
        (trajectory,) = asyncio.run(player.play_all([plan], concurrency=1))
        assert not engine.sessions
        return trajectory, [chatml_tokenizer.decode(turn.prompt_ids) for turn in trajectory.turns]

    return run


def expert(task) -> tuple[str, str]:
    from sage_jax.envs.appworld.lite.env import _world
    from sage_jax.envs.appworld.twin.world import WorldOptions

    solution = _world(WorldOptions(**task.payload["world"]))[1][task.id].solution
    return solution.turns()


def test_the_expert_wins_and_what_ran_is_told(play, lite_task):
    define, complete = expert(lite_task)
    trajectory, prompts = play([code_text("print(nothing)"), code_text(define), code_text(complete)])
    assert trajectory.info["success"]
    assert (trajectory.reward.value, trajectory.info["steps"], trajectory.info["score"]) == (1.0, 3, 1.0)
    assert [turn.info["ran"] for turn in trajectory.turns] == [False, True, True]
    assert trajectory.turns[1].info["action"] == define
    assert lite_task.payload["instruction"] in prompts[0]
    assert "NameError" in prompts[1]
    assert trajectory.info["ended_by_turn"] is False


def test_a_turn_without_code_ends_the_episode(play):
    trajectory, _ = play([code_text("x = 1"), "All is done."])
    assert trajectory.info["ended_by_turn"]
    assert trajectory.reward.value == -1.0
    assert trajectory.info["steps"] == 1


def test_functions_that_load_are_shown_and_lie_in_the_shell(play):
    trajectory, prompts = play([code_text("answer = three()\nprint(answer)"), COMPLETE], [GOOD, BAD])
    assert "def three" in prompts[0]
    assert "def broken" not in prompts[0]
    assert "3" in prompts[1]
    info = trajectory.info
    assert (info["programs"], info["called"], list(info["dropped"])) == (["three"], ["three"], ["broken"])
    assert "NameError" in info["dropped"]["broken"]
    assert info["steps"] == 2  # loading and asking are no turns


def test_a_function_that_is_named_and_not_called_was_not_used(play):
    assert play([code_text("f = three\nanswer = 3"), COMPLETE], [GOOD])[0].info["called"] == []
    assert play([code_text("answer = three('x')"), code_text("answer = 1"), COMPLETE], [GOOD])[0].info["called"] == []
    # Called in the very turn that ends the episode.
    last = code_text("apis.supervisor.complete_task(answer=three())")
    assert play([last], [GOOD])[0].info["called"] == ["three"]
    assert play([last], [GOOD], credit="name")[0].info["called"] == []  # not counted there


def test_an_episode_that_runs_out_of_steps(play):
    trajectory, _ = play([code_text("x = three()")] * 2, [GOOD], max_steps=2)
    assert trajectory.reward.status is Status.TRUNCATED
    assert trajectory.info["called"] == ["three"]


def test_skills_in_words_stand_above_the_task(play):
    bank = SkillBank().add(category="general", title="docs first", principle="read the documents")
    trajectory, prompts = play(["<action>\nx = 1\n</action>", "no code"], bank=bank)
    assert "skill docs first : read the documents ." in prompts[0]
    assert trajectory.info["skills"] == [skill.id for skill in bank]
