"""The embedded engine on the workload; run by benchmarks/rollout.py.

Modes: "keep" keeps an episode's slot between turns, "sampled" also the keys of sampled tokens (keep_sampled), and
"again" forgets the episode after every turn, so that its history is prefilled again as the rivals do.
"""

from __future__ import annotations

import asyncio

import generation_work as turns
import workload as work

args = turns.arguments(__doc__)

import jax  # noqa: E402
from model_sage_jax import MODEL  # noqa: E402

import sage_jax  # noqa: E402
from sage_jax.models import init_params  # noqa: E402
from sage_jax.rollout import GenerateRequest, SamplingParams  # noqa: E402
from sage_jax.rollout.embedded import EmbeddedEngine  # noqa: E402
from sage_jax.rollout.programs import EngineConfig  # noqa: E402

LONGEST = max((turns.OBSERVATION + turns.ANSWER) * args.turns, turns.PROMPT + turns.NEW)
SLOTS = max(args.episodes, *map(int, filter(None, f"1,{args.batches}".split(","))))
SIZES = {name: int(value) for name, _, value in (one.partition("=") for one in args.engine.split(",") if one)}
CONFIG = EngineConfig(num_slots=SLOTS, max_length=LONGEST, keep_sampled=args.mode == "sampled", **SIZES)
ENGINE = EmbeddedEngine(MODEL, init_params(MODEL, jax.random.key(0)), CONFIG)


async def _turn(number: int, ids: list[int], new: int, seed: int) -> list[int]:
    request = GenerateRequest(str(number), str(number), tuple(ids), SamplingParams(new, seed=1000 * seed + number))
    result = await ENGINE.generate(request)
    if args.mode == "again":
        await ENGINE.end_session(str(number))
    return list(result.ids)


def generate(contexts: list[list[int]], new: int, seed: int) -> list[list[int]]:
    """Takes one turn of every episode."""

    async def play() -> list[list[int]]:
        return await asyncio.gather(*(_turn(number, ids, new, seed) for number, ids in enumerate(contexts)))

    return asyncio.run(play())


def forget() -> None:
    """Ends all episodes."""

    async def end() -> None:
        for number in range(SLOTS):
            await ENGINE.end_session(str(number))

    asyncio.run(end())


if __name__ == "__main__":
    ENGINE.warmup()
    work.print_result(f"sage_jax {args.mode}", sage_jax.__version__, **turns.measure(args, generate, after=forget))
    ENGINE.close()
