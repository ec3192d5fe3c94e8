"""What every side generates: prompts, turns, observations. Needs the standard library only.

The model is that of workload.py. Nothing stops early, so that every side makes the same number of tokens.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import workload as work

OBSERVATION, ANSWER = 60, 24  # tokens of a turn
PROMPT, NEW = 128, 128  # tokens of a single-turn request


def words(*key: int, count: int) -> list[int]:
    """Returns random ids that follow from the key."""
    rng = random.Random(str(key))
    return [rng.randrange(work.FIRST_WORD, work.VOCAB) for _ in range(count)]


def play(
    episodes: int, turns: int, generate: Callable[[list[list[int]], int, int], list[list[int]]], first: int = 0
) -> list[float]:
    """Plays episodes turn by turn; returns the CPU-seconds of all threads that each turn took.

    Args:
      episodes: all of them take a turn at the same time.
      turns: of each.
      generate: (contexts, new tokens, number of the turn) -> the new tokens of each.
      first: number of the first episode.
    """
    contexts: list[list[int]] = [[] for _ in range(episodes)]
    spent = []
    for turn in range(turns):
        contexts = [ids + words(first + n, turn, count=OBSERVATION) for n, ids in enumerate(contexts)]
        began = time.process_time()
        answers = generate(contexts, ANSWER, turn)
        spent.append(time.process_time() - began)
        if [len(answer) for answer in answers] != [ANSWER] * episodes:
            raise SystemExit(f"answers of {[len(answer) for answer in answers]} tokens instead of {ANSWER}")
        contexts = [ids + [int(token) for token in answer] for ids, answer in zip(contexts, answers, strict=True)]
    return spent


def single(batch: int, generate: Callable[[list[list[int]], int, int], list[list[int]]], number: int) -> float:
    """Answers `batch` prompts once; returns CPU-seconds."""
    prompts = [words(number, n, count=PROMPT) for n in range(batch)]
    began = time.process_time()
    answers = generate(prompts, NEW, number)
    spent = time.process_time() - began
    if [len(answer) for answer in answers] != [NEW] * batch:
        raise SystemExit(f"answers of {[len(answer) for answer in answers]} tokens instead of {NEW}")
    return spent


def arguments(text: str | None) -> argparse.Namespace:
    """Reads a side's flags and pins the process to one core, before a numerical library starts its threads."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=12, help="0 leaves the multi-turn part out")
    parser.add_argument("--batches", default="8,16,32", help="empty leaves the single-turn part out")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--mode", default="", help="of sage_jax: how it keeps contexts")
    parser.add_argument("--engine", default="", help="of sage_jax: fields of EngineConfig, as in decode_rows=32")
    args = parser.parse_args()
    work.one_core(args.core)
    return args


def measure(
    args: argparse.Namespace,
    generate: Callable[[list[list[int]], int, int], list[list[int]]],
    *,
    after: Callable[[], None] = lambda: None,
) -> dict:
    """Runs both parts; returns the least CPU-seconds of each turn and of each batch.

    Args:
      args: of `arguments`.
      generate: the side's, compiled for all shapes that come.
      after: called after every run, untimed.
    """
    runs = []
    for number in range(args.repeats if args.turns else 0):
        runs.append(play(args.episodes, args.turns, generate, first=1000 * number))
        after()
    found: dict = {"turns": [min(column) for column in zip(*runs, strict=True)], "batches": {}}
    for batch in map(int, filter(None, args.batches.split(","))):
        spent = []
        for number in range(args.repeats):
            spent.append(single(batch, generate, number))
            after()
        found["batches"][batch] = min(spent)
    return found
