import dataclasses
import json

import pytest

from sage_jax.envs.appworld.lite import apps
from sage_jax.envs.appworld.lite.state import State
from sage_jax.envs.appworld.twin.base import TwinTask
from sage_jax.envs.appworld.twin.world import CHALLENGE, SEEN, TEMPLATES, World, WorldOptions, make_world
from sage_jax.errors import ConfigError
from sage_jax.skills.programs import extract_programs


class Namespace:
    """`apis` as the agent's shell has it, without a sandbox: for the project's own code only."""

    def __init__(self, state: State, app: str | None = None):
        self._state, self._app = state, app

    def __getattr__(self, name: str):
        if self._app is None:
            return Namespace(self._state, name)
        return lambda **arguments: json.loads(json.dumps(apps.call(self._state, self._app, name, arguments)))

    __getitem__ = __getattr__


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


def state_of(world: World, task: TwinTask) -> State:
    return State(world.people[task.person], world.shared, task)


def play(state: State, *turns: str) -> dict[str, bool]:
    names = {"apis": Namespace(state), "print": lambda *_: None}
    for turn in turns:
        exec(turn, names)
    return state.tests()


def test_the_world_is_as_large_as_it_should_be(world: World):
    assert len(world.templates) >= 40
    assert len(world.tasks) == 3 * len(world.templates)
    assert len({app for template in SEEN for app in template.apps}) >= 4
    assert {template.difficulty for template in SEEN} == {1, 2, 3}
    assert any(task.changes for task in world.tasks)
    assert any(task.answer is not None for task in world.tasks)


def test_scenarios_are_split_and_the_challenge_app_is_never_seen(world: World):
    ids = [task_id for split in world.splits.values() for task_id in split]
    assert len(ids) == len(set(ids)) == len(world.tasks)
    scenarios = [{task_id.rpartition("_")[0] for task_id in split} for split in world.splits.values()]
    assert sum(map(len, scenarios)) == len(set.union(*scenarios))
    seen = {app for template in SEEN for app in template.apps}
    assert not seen & {app for template in CHALLENGE for app in template.apps}
    challenge = {world.templates[scenario] for scenario in scenarios[3]}
    assert challenge == {template.name for template in CHALLENGE}


def test_the_expert_solves_every_task_and_nothing_else_changes(world: World):
    for task in world.tasks:
        tests = play(state_of(world, task), *task.solution.turns())
        assert all(tests.values()), (world.templates[task.id.rpartition("_")[0]], task.instruction, tests)


def test_an_agent_that_has_the_functions_needs_only_the_call(world: World):
    for task in world.tasks[::7]:
        assert all(play(state_of(world, task), task.solution.functions, *task.solution.turns_with_library()).values())


def test_the_three_tasks_of_a_scenario_share_their_functions_and_differ(world: World):
    for first, second, third in zip(world.tasks[::3], world.tasks[1::3], world.tasks[2::3], strict=True):
        assert first.solution.functions == second.solution.functions == third.solution.functions
        assert len({first.instruction, second.instruction, third.instruction}) == 3
        assert extract_programs(first.solution.functions)


def test_doing_nothing_solves_nothing(world: World):
    for task in world.tasks:
        idle = play(state_of(world, task), "apis.supervisor.complete_task()")
        assert not all(idle.values()), task.instruction
        assert idle["nothing else changed"]


def test_doing_too_much_solves_nothing(world: World):
    extra = 'apis.simple_note.create_note(title="extra", content="", access_token=open_app("simple_note"))'
    for task in world.tasks[::5]:
        define, complete = task.solution.turns()
        tests = play(state_of(world, task), define, extra, complete)
        assert not tests.pop("nothing else changed")
        assert all(tests.values())


def test_a_wrong_answer_solves_nothing(world: World):
    for task in world.tasks[::5]:
        define, _ = task.solution.turns()
        tests = play(state_of(world, task), define, "apis.supervisor.complete_task(answer='certainly not')")
        assert not tests["the answer is right"]


def test_a_change_to_another_row_is_told_apart(world: World):
    task = next(task for task in world.tasks if world.templates[task.id.rpartition("_")[0]] == "note_pin")
    state = state_of(world, task)
    wrong = next(n for n, row in state.find("simple_note.Note") if row["title"] != task.changes[0].where["title"])
    state.tables["simple_note.Note"][wrong]["title"] = "changed"
    tests = state.tests()
    assert not tests["change 1 was made"]
    assert not tests["nothing else changed"]


def test_the_same_options_give_the_same_world(world: World):
    assert make_world().as_json() == world.as_json()
    assert make_world(WorldOptions(seed=1)).as_json() != world.as_json()
    json.dumps(world.as_json())


def test_first_names_are_unique(world: World):
    assert len({person.first_name for person in world.people}) == len(world.people)


def test_options_out_of_range_are_named():
    with pytest.raises(ConfigError, match="dev is 0"):
        WorldOptions(dev=0)
    with pytest.raises(ConfigError, match="names for"):
        make_world(WorldOptions(train=100))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_names_its_apps(name: str):
    template = TEMPLATES[name]
    used = {part.split(".")[0] for part in template.functions.split("apis.")[1:]}
    assert used <= set(template.apps)
    assert dataclasses.is_dataclass(template)
