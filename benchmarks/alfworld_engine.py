"""Measures ALFWorld here beside the engine as it is shipped, on the same games and actions.

    python -m benchmarks.alfworld_engine [--games=12] [--steps=20]

CPU time, one process; then the wall time of many episodes at once on a pool. Games are generated into the usual cache.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import random
import statistics
import tempfile
import time
from collections import defaultdict

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs import PddlEnv

from sage_jax.data.tasks import AlfworldSource, load_tasks
from sage_jax.envs.alfworld import AlfworldFactory
from sage_jax.envs.pool import EnvPool
from sage_jax.types import Task

Times = dict[str, list[float]]


def timed(times: Times, name: str, function, *args):
    """Calls a function and adds its CPU seconds to `times`."""
    start = time.process_time()
    result = function(*args)
    times[name].append(time.process_time() - start)
    return result


def play_stock(tasks: list[Task], steps: int) -> Times:
    """Plays random actions in the stock engine."""
    times: Times = defaultdict(list)
    env = AlfredInfos(AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))))
    for task in tasks:
        rng = random.Random(task.id)
        timed(times, "load a game", env.load, str(pathlib.Path(task.payload["root"], task.payload["game"])))
        state = timed(times, "reset", env.reset)
        for _ in range(steps):
            state, _, done = timed(times, "step", env.step, rng.choice(state.admissible_commands))
            if done:
                break
    return times


def play_ours(tasks: list[Task], steps: int) -> Times:
    """Plays the same actions here: a game never seen, one grounded by another process, one in memory."""
    times: Times = defaultdict(list)
    with tempfile.TemporaryDirectory() as translations:
        for name in ("load a game", "load a grounded game"):
            env = AlfworldFactory(include_help=True, translations=translations)()
            env.reset(tasks[0], 0)  # parses the grammar, once for each process
            for task in tasks[1:]:
                timed(times, name, env.reset, task, 0)
    for task in tasks:
        rng = random.Random(task.id)
        env.reset(task, 0)
        state = timed(times, "reset", env.reset, task, 0)
        for _ in range(steps):
            state = timed(times, "step", env.step, rng.choice(state.admissible))
            if state.done:
                break
    return times


async def play_pool(tasks: list[Task], steps: int, translations: str, episodes: int = 64) -> tuple[float, float]:
    """Returns the steps per wall second of `episodes` at once, 8 on each game, and the seconds of their first reset."""

    async def episode(pool: EnvPool, number: int) -> int:
        rng = random.Random(number)
        state = await pool.reset(number, tasks[number // 8 % len(tasks)], 0)
        for played in range(1, steps + 1):
            state = await pool.step(number, rng.choice(state.admissible))
            if state.done:
                return played
        return steps

    with EnvPool(AlfworldFactory(translations=translations), workers=2) as pool:
        start = time.perf_counter()
        await asyncio.gather(*(pool.reset(f"warm up {n}", tasks[n // 8 % len(tasks)], 0) for n in range(episodes)))
        set_up = time.perf_counter() - start
        for n in range(episodes):
            await pool.release(f"warm up {n}")
        start = time.perf_counter()
        played = await asyncio.gather(*(episode(pool, number) for number in range(episodes)))
        return sum(played) / (time.perf_counter() - start), set_up


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    source = AlfworldSource(source="generated", games={"max_receptacles": None, "train": 10, "valid_seen": 0})
    tasks = list(load_tasks(source)["train"])
    tasks = tasks[:: max(1, len(tasks) // args.games)][: args.games]
    stock, ours = play_stock(tasks, args.steps), play_ours(tasks, args.steps)
    print("| CPU ms (median / mean) | stock | here |\n|---|---|---|")
    for name in ("load a game", "load a grounded game", "reset", "step"):
        cells = [
            f"{1e3 * statistics.median(times[name]):.1f} / {1e3 * statistics.mean(times[name]):.1f}"
            if times.get(name)
            else ""
            for times in (stock, ours)
        ]
        print(f"| {name} | {cells[0]} | {cells[1]} |")
    rate, set_up = asyncio.run(play_pool(tasks, args.steps, str(source.translations_folder)))
    print(f"\n64 episodes at once on 2 workers: {rate:.0f} steps a wall second; first reset of all: {set_up:.1f} s")


if __name__ == "__main__":
    main()
