import os
import pathlib
import random
import sys

import pytest
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs import PddlEnv

from sage_jax.envs.alfworld import FAMILIES, AlfworldFactory
from sage_jax.errors import DataError, EnvError
from sage_jax.types import Task


@pytest.fixture(scope="module")
def stock():
    """The engine exactly as it is shipped."""
    return AlfredInfos(AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))))


@pytest.fixture
def env():
    made = AlfworldFactory(include_help=True)()
    yield made
    made.close()


def assert_same_episode(env, stock, task: Task, seed: int, steps: int) -> bool:
    """Plays half random, half expert actions in both engines; every text, list and outcome must be the same."""
    rng = random.Random(seed)
    ours = env.reset(task, seed, expert=True)
    stock.load(str(pathlib.Path(task.payload["root"], task.payload["game"])))
    theirs = stock.reset()
    assert ours.info["raw"] == theirs.feedback
    assert list(ours.admissible) == theirs.admissible_commands
    for _ in range(steps):
        action = rng.choice(ours.admissible) if rng.random() < 0.5 else ours.info["expert_action"] or "open sesame"
        ours = env.step(action)
        theirs, score, done = stock.step(action)
        assert ours.text == theirs.feedback
        assert list(ours.admissible) == theirs.admissible_commands
        assert (ours.won, ours.done, ours.reward) == (theirs["won"], done, score)
        assert ours.info["invalid"] == (ours.text == "Nothing happens.")
        if done:
            return True
    return False


@pytest.mark.parametrize("family", FAMILIES)
def test_every_word_is_the_stock_engines(family, family_tasks, env, stock):
    assert_same_episode(env, stock, family_tasks[family], seed=5, steps=25)


@pytest.mark.slow
def test_every_word_is_the_stock_engines_over_many_episodes(tasks, env, stock):
    finished = [assert_same_episode(env, stock, task, seed, 60) for seed in range(2) for task in tasks]
    assert any(finished)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_every_family(family, family_tasks, env):
    observation = env.reset(family_tasks[family], 0, expert=True)
    rewards = []
    for _ in range(60):
        result = env.step(observation.info["expert_action"])
        rewards.append(result.reward)
        if result.done:
            break
        observation = result
    assert result.won
    assert result.info["expert_action"] is None
    assert rewards[-1] == 1.0
    assert sum(rewards) == 1.0


def test_the_first_observation_is_the_room_and_the_task(family_tasks, env):
    observation = env.reset(family_tasks["pick_heat_then_place_in_recep"], 0)
    assert observation.text == f"{observation.info['room']}\n\nYour task is to: {observation.info['task']}"
    assert observation.info["room"].startswith("You are in the middle of a room.")
    assert observation.info["family"] == "pick_heat_then_place_in_recep"
    assert "TextWorld" not in observation.text
    assert "expert_action" not in observation.info


def test_help_is_hidden_but_playable(family_tasks):
    env = AlfworldFactory()()
    observation = env.reset(family_tasks["pick_two_obj_and_place"], 0)
    assert "help" not in observation.admissible
    assert "look" in observation.admissible
    result = env.step("help")
    assert "Available commands" in result.text
    assert not result.info["invalid"]
    env.close()


def test_an_impossible_action_changes_nothing_and_is_flagged(family_tasks, env):
    before = env.reset(family_tasks["pick_and_place_simple"], 0)
    result = env.step("fly to the moon")
    assert result.text == "Nothing happens."
    assert result.info["invalid"]
    assert result.admissible == before.admissible
    assert not env.step("  look \n").info["invalid"]


def test_step_needs_a_running_episode(family_tasks, env):
    with pytest.raises(EnvError, match="reset"):
        env.step("look")


def test_two_episodes_of_one_game_share_no_state(family_tasks):
    factory = AlfworldFactory()
    first, second, fresh = factory(), factory(), factory()
    task = family_tasks["pick_and_place_simple"]
    a, b = first.reset(task, 0, expert=True), second.reset(task, 0)
    start = b.admissible
    while a.info.get("expert_action") is not None:
        a = first.step(a.info["expert_action"])
        b = second.step("inventory")
        assert b.text == "You are not carrying anything."
        assert b.admissible == start
        assert not b.won
    assert a.won
    assert fresh.reset(task, 0).admissible == start
    assert not second.step("look").won
    for env in (first, second, fresh):
        env.close()


def test_the_process_is_left_as_it_was(family_tasks, env):
    argv = list(sys.argv)
    random.seed(17)
    before = random.getstate()
    observation = env.reset(family_tasks["look_at_obj_in_light"], 0, expert=True)
    env.step(observation.info["expert_action"])
    assert sys.argv == argv
    assert random.getstate() == before


def test_the_expert_repeats_itself_under_one_seed(family_tasks):
    def play(seed: int) -> list[str]:
        env = AlfworldFactory()()
        observation = env.reset(family_tasks["pick_two_obj_and_place"], seed, expert=True)
        actions = []
        while (action := observation.info["expert_action"]) is not None and len(actions) < 40:
            actions.append(action)
            observation = env.step(action)
        env.close()
        return actions

    assert play(4) == play(4)


def test_a_missing_or_broken_game_is_named(tmp_path, env):
    task = Task("x", "alfworld", "train", "pick_and_place_simple", {"root": str(tmp_path), "game": "game.tw-pddl"})
    with pytest.raises(DataError, match=r"game\.tw-pddl is missing"):
        env.reset(task, 0)
    (tmp_path / "game.tw-pddl").write_text('{"pddl_domain": "(define"')
    with pytest.raises(DataError, match=r"game\.tw-pddl cannot be read"):
        env.reset(task, 0)
    (tmp_path / "game.tw-pddl").write_text('{"pddl_domain": "", "grammar": "", "pddl_problem": ""}')
    with pytest.raises(DataError, match=r"traj_data\.json is missing"):
        env.reset(task, 0)
    (tmp_path / "traj_data.json").write_text('{"task_type": "juggle", "pddl_params": {}}')
    with pytest.raises(DataError, match="juggle"):
        env.reset(task, 0)
    params = '{"object_target": "Mug", "parent_target": "Desk", "toggle_target": ""}'
    (tmp_path / "traj_data.json").write_text(f'{{"task_type": "pick_and_place_simple", "pddl_params": {params}}}')
    with pytest.raises(DataError, match=r"game\.tw-pddl"):
        env.reset(task, 0)


def rss_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def play_for_memory(tasks: list[Task], episodes: int) -> float:
    """Plays episodes in environments that come and go; returns the growth of memory in MiB after the first ones."""
    factory = AlfworldFactory(cached_games=3)
    rng = random.Random(0)
    warm_up = 2 * len(tasks)
    for episode in range(warm_up + episodes):
        if episode == warm_up:
            start = rss_mb()
        env = factory()
        observation = env.reset(tasks[episode % len(tasks)], episode)
        for _ in range(3):
            observation = env.step(rng.choice(observation.admissible))
        env.close()
    return rss_mb() - start


def test_memory_stays_flat(tasks):
    assert play_for_memory(tasks[:8], 40) < 5.0


@pytest.mark.slow
def test_memory_stays_flat_over_500_episodes(tasks):
    assert play_for_memory(tasks, 500) < 5.0
