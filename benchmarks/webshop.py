"""Measures the shop: building a catalogue, resets, steps, searches, and what a worker adds to the shared memory.

    python -m benchmarks.webshop [--products=2000] [--episodes=200] [--workers=2]

CPU time of one process unless said otherwise; the official catalogue is measured when $WEBSHOP_DATA names its folder.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import statistics
import tempfile
import time
from collections import defaultdict

import psutil

from sage_jax.envs.pool import EnvPool
from sage_jax.envs.webshop import WebShopFactory
from sage_jax.envs.webshop.catalogue import Catalogue
from sage_jax.envs.webshop.source import build_catalogue
from sage_jax.types import Task

Times = dict[str, list[float]]


def timed(times: Times, name: str, function, *args, **values):
    """Calls a function, adds its CPU seconds to `times` and returns its value."""
    start = time.process_time()
    result = function(*args, **values)
    times[name].append(time.process_time() - start)
    return result


def make_tasks(folder: pathlib.Path, count: int) -> list[Task]:
    """Returns the first goals of a catalogue."""
    payload = {"catalogue": str(folder), "goals": "synthetic", "seed": 0}
    return [Task(f"webshop/test/{n}", "webshop", "test", "", {**payload, "goal": n}) for n in range(count)]


def play(tasks: list[Task], mode: str) -> Times:
    """Plays the known way to each goal in one process."""
    times: Times = defaultdict(list)
    env = timed(times, "open", WebShopFactory(mode=mode))
    for task in tasks:
        observation = timed(times, "reset", env.reset, task, 0, expert=True)
        action = observation.info["expert_action"]
        for _ in range(30):
            if action is None:
                break
            kind = "search" if action.startswith("search[") else "buy" if action == "click[buy now]" else "click"
            result = timed(times, kind, env.step, action)
            times["step"].append(times[kind][-1])
            action = result.info["expert_action"]
    return times


async def play_on_workers(tasks: list[Task], workers: int) -> tuple[float, list[int], list[int]]:
    """Plays all at once; returns steps a wall second, and bytes of each worker: its own, and shared ones."""
    steps = 0

    async def one(pool: EnvPool, task: Task) -> None:
        nonlocal steps
        observation = await pool.reset(task.id, task, 0, expert=True)
        action = observation.info["expert_action"]
        for _ in range(30):
            if action is None:
                break
            result = await pool.step(task.id, action)
            action, steps = result.info["expert_action"], steps + 1
        await pool.release(task.id)

    with EnvPool(WebShopFactory(), workers=workers) as pool:
        await asyncio.gather(*(one(pool, task) for task in tasks[:workers]))  # start the workers
        start, steps = time.monotonic(), 0
        await asyncio.gather(*(one(pool, task) for task in tasks))
        rate = steps / (time.monotonic() - start)
        memory = [psutil.Process(pid).memory_full_info() for pid in pool.pids]
    return rate, [info.uss for info in memory], [info.rss - info.uss for info in memory]


def measure(name: str, source: str, products: int, episodes: int, workers: int) -> None:
    """Prints one catalogue's numbers."""
    with tempfile.TemporaryDirectory() as cache:
        start = time.process_time()
        folder = build_catalogue(source, pathlib.Path(cache), size="small", products=products, seed=0)
        built = time.process_time() - start
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        tasks = make_tasks(folder, episodes)
        print(f"{name}: {len(Catalogue(folder))} products, built in {built:.2f} CPU s, {size:.1f} MB on disk")
        times = play(tasks, "text")
        for kind in ("reset", "search", "click", "buy", "step"):
            values = sorted(1e3 * value for value in times[kind])
            p90 = values[9 * len(values) // 10]
            print(
                f"  {kind:7} median {statistics.median(values):.3f} mean {statistics.mean(values):.3f} p90 {p90:.3f} ms"
            )
        rate, own, shared = asyncio.run(play_on_workers(tasks, workers))
        megabytes = ", ".join(f"{a / 1e6:.0f} + {b / 1e6:.0f}" for a, b in zip(own, shared, strict=True))
        print(f"  {episodes} episodes at once on {workers} workers: {rate:.0f} steps a wall second")
        print(f"  MB of a worker, its own + shared: {megabytes}")


def main() -> None:
    """Parses the command line and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--products", type=int, default=2000)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    measure("generated", "generated", options.products, options.episodes, options.workers)
    from sage_jax.envs.webshop.official import official_folder

    if official_folder() is not None:
        measure("official, small", "official", 0, options.episodes, options.workers)


if __name__ == "__main__":
    main()
