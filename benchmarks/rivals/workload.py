"""What every side computes: sizes of the model, prompts, rewards, agent trajectories. Needs the standard library only.

The model is a Qwen2 of 8.0M parameters with random weights; times do not depend on what weights say.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 8192, 256, 6, 4, 2, 64, 1024
ROPE_THETA, RMS_EPS = 10_000.0, 1e-6
PAD, EOS, BOS, FIRST_WORD = 0, 1, 2, 8
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 4, 8, 128, 128
LEARNING_RATE, WEIGHT_DECAY, KL_COEF, CLIP = 1e-5, 1e-4, 0.04, 0.2
TURNS, OBSERVATION_SHARE, SHORTEST, LONGEST = 20, 0.8, 400, 3000


@dataclasses.dataclass(frozen=True)
class AgentTrajectory:
    """Token ids of a whole episode; `mask` is 1 where the agent wrote the token."""

    ids: list[int]
    mask: list[int]
    advantage: float

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that the agent wrote."""
        return self.mask.index(1)


def prompt(step: int, index: int) -> list[int]:
    """Returns one prompt: BOS and random words."""
    rng = random.Random(100_000 * step + index)
    return [BOS] + [rng.randrange(FIRST_WORD, VOCAB) for _ in range(PROMPT_TOKENS - 1)]


def reward(ids: list[int]) -> float:
    """Returns the share of even ids, which differs inside a group."""
    return sum(token % 2 == 0 for token in ids) / max(1, len(ids))


def agent_trajectories(count: int, mix: str = "uniform", seed: int = 0) -> list[AgentTrajectory]:
    """Returns `count` episodes of 20 turns of which four fifths are observations.

    Args:
      count: episodes.
      mix: lengths "uniform" between 400 and 3000, "short" (one long among short ones) or "long" (all near 3000).
      seed: of lengths and tokens.
    """
    rng = random.Random(seed)
    spread = {
        "uniform": lambda i: SHORTEST + (LONGEST - SHORTEST) * i // max(1, count - 1),
        "short": lambda i: LONGEST if i == 0 else rng.randint(SHORTEST, 2 * SHORTEST),
        "long": lambda i: rng.randint(LONGEST - SHORTEST, LONGEST),
    }[mix]
    made = []
    for index in range(count):
        length = spread(index)
        turn = length // TURNS
        seen = round(turn * OBSERVATION_SHARE)
        mask = ([0] * (seen + length % TURNS)) + [1] * (turn - seen)
        mask += ([0] * seen + [1] * (turn - seen)) * (TURNS - 1)
        ids = [rng.randrange(FIRST_WORD, VOCAB) for _ in range(length)]
        made.append(AgentTrajectory(ids, mask, rng.gauss(0, 1)))
    return made


class Stopwatch:
    """CPU-seconds of all threads, booked by name."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, booking each call under `name`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            self.book(name, time.process_time() - start)
            return result

        return timed

    def book(self, name: str, seconds: float) -> None:
        """Adds one measurement."""
        self.spent.setdefault(name, []).append(seconds)


def print_result(side: str, version: str, **found: Any) -> None:
    """Prints the JSON line that `benchmarks.sides` reads; the peak memory is of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("RESULT " + json.dumps({"side": side, "version": version, "peak_rss_mb": peak, **found}), flush=True)


def report(side: str, version: str, watch: Stopwatch, **more: Any) -> None:
    """Prints first, least and median of the later CPU-seconds by name, and the peak memory."""
    times = {
        name: {"first": values[0], "best": min(values[1:] or values), "median": statistics.median(values[1:] or values)}
        for name, values in watch.spent.items()
    }
    print_result(side, version, cpu_s=times, **more)


def one_core(core: int) -> None:
    """Pins this process to a core, with one thread; to be called before a numerical library starts its threads.

    Args:
      core: its number; below 0 leaves the choice to the system, which helps where others work on all cores.
    """
    if core >= 0:
        os.sched_setaffinity(0, {core})
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
