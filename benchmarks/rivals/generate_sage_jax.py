"""The embedded engine on the workload; run by benchmarks/rollout.py.

Modes: "keep" keeps an episode's slot between turns, "resampled" prefills sampled tokens again all the same
(keep_sampled), "narrow" keeps keys and values in bfloat16 (kv_dtype), and "again" forgets the episode after every turn,
so that its history is prefilled again as the rivals do.
"""

from __future__ import annotations

import ast
import asyncio
import functools

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
SIZES = {
    name: ast.literal_eval(value) for name, _, value in (one.partition("=") for one in args.engine.split(",") if one)
}
PARAMS = init_params(MODEL, jax.random.key(0))


@functools.cache
def make_engine(batch: int) -> EmbeddedEngine:
    """Returns an engine for so many sequences at once, compiled."""
    mode = {"resampled": {"keep_sampled": False}, "narrow": {"kv_dtype": "bfloat16"}}.get(args.mode, {})
    config = EngineConfig.for_model(MODEL, batch, LONGEST, **mode, **SIZES)
    engine = EmbeddedEngine(MODEL, PARAMS, config)
    engine.warmup()
    return engine


async def _turn(engine: EmbeddedEngine, number: int, ids: list[int], new: int, seed: int) -> list[int]:
    request = GenerateRequest(str(number), str(number), tuple(ids), SamplingParams(new, seed=1000 * seed + number))
    result = await engine.generate(request)
    if args.mode == "again":
        await engine.end_session(str(number))
    return list(result.ids)


def generate(contexts: list[list[int]], new: int, seed: int) -> list[list[int]]:
    """Takes one turn of every episode."""
    engine = make_engine(len(contexts))

    async def play() -> list[list[int]]:
        return await asyncio.gather(*(_turn(engine, number, ids, new, seed) for number, ids in enumerate(contexts)))

    return asyncio.run(play())


async def forget() -> None:
    """Ends all episodes."""
    for batch in BATCHES:
        for number in range(batch):
            await make_engine(batch).end_session(str(number))


BATCHES = sorted({*([args.episodes] if args.turns else []), *map(int, filter(None, args.batches.split(",")))})

if __name__ == "__main__":
    for size in BATCHES:
        make_engine(size)
    found = turns.measure(args, generate, after=lambda: asyncio.run(forget()))
    for size in BATCHES:
        make_engine(size).close()
    work.print_result(f"sage_jax {args.mode}", sage_jax.__version__, **found)
