"""Prints prompt and output tokens per second of the embedded engine, at several numbers of running sessions.

    python -m benchmarks.rollout_engine --slots=64 --running=1,8,32,64 --context=256

One model of 0.8M parameters and its vocabulary (d = 128, 4 layers, V = 2048), random weights. Every session gets a
prompt of `context` tokens, then a second turn of 60 new tokens; both generate `new` tokens. CPU seconds count all
threads of the process: on a shared machine they are the figure to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import jax
import numpy as np

from sage_jax.models import ModelConfig, init_params
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.programs import EngineConfig

MODEL = ModelConfig(
    vocab_size=2048,
    hidden_size=128,
    intermediate_size=384,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    tie_embeddings=True,
)
OBSERVATION = 60  # new tokens before the second turn


async def two_turns(engine: EmbeddedEngine, number: int, context: int, new: int) -> None:
    """Plays one session of two turns and forgets it."""
    rng = np.random.default_rng(number)
    ids: tuple[int, ...] = ()
    for turn, length in enumerate((context, OBSERVATION)):
        ids += tuple(rng.integers(0, MODEL.vocab_size, length).tolist())
        sampling = SamplingParams(max_new_tokens=new, seed=2 * number + turn)
        ids += (await engine.generate(GenerateRequest(f"{number}.{turn}", str(number), ids, sampling))).ids
    await engine.end_session(str(number))


def measure(engine: EmbeddedEngine, running: int, context: int, new: int) -> str:
    """Returns a table row for `running` sessions at once."""

    async def play() -> None:
        await asyncio.gather(*(two_turns(engine, number, context, new) for number in range(running)))

    before, wall, cpu = engine.stats(), time.perf_counter(), time.process_time()
    asyncio.run(play())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    spent = {name: value - before[name] for name, value in engine.stats().items()}
    prefill = spent["prefilled_tokens"] / spent["prefill_seconds"]
    decode = spent["generated_tokens"] / spent["decode_seconds"]
    return f"{running:8d} {prefill:18.0f} {decode:18.0f} {wall:8.2f} {cpu:8.2f}"


def main() -> None:
    """Reads the flags and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--running", default="1,8,32,64")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--new", type=int, default=64)
    args = parser.parse_args()
    began = time.perf_counter()
    engine = EmbeddedEngine(MODEL, init_params(MODEL, jax.random.key(0)), EngineConfig(num_slots=args.slots))
    engine.warmup()
    ready = time.perf_counter() - began
    print(f"{args.slots} slots, context {args.context}, 2 x {args.new} new tokens; ready after {ready:.1f} s")
    print(f"{'running':>8s} {'prefill tokens/s':>18s} {'decode tokens/s':>18s} {'wall s':>8s} {'cpu s':>8s}")
    for running in map(int, args.running.split(",")):
        print(measure(engine, running, args.context, args.new), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
