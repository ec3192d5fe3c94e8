"""sage_jax on the workload. Usage: side_sage_jax.py grpo|agent --steps 5 --core 0; run by benchmarks/update.py."""

from __future__ import annotations

import argparse
import asyncio
import functools
import time

import workload as work

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("kind", choices=("grpo", "agent"))
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--core", type=int, default=0)
parser.add_argument("--rows", type=int, default=8, help="rows of a micro-batch")
parser.add_argument(
    "--row_length", type=int, default=0, help="0: prompt and answer; for agents, where they fill rows best"
)
parser.add_argument("--remat", default="none")
parser.add_argument("--scan", action="store_true", help="scan over the layers")
parser.add_argument("--attention", default="auto")
parser.add_argument("--episodes", type=int, default=8)
parser.add_argument("--mix", default="uniform")
parser.add_argument("--trace", default="", help="folder for a profile of the last step")
args = parser.parse_args()
work.one_core(args.core)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from model_sage_jax import MODEL  # noqa: E402

import sage_jax  # noqa: E402
from sage_jax.data.packing import Sequence, best_row_length, micro_batches, pack  # noqa: E402
from sage_jax.losses import group_advantages  # noqa: E402
from sage_jax.models import forward, head_weights, init_params  # noqa: E402
from sage_jax.rollout.embedded import EmbeddedEngine  # noqa: E402
from sage_jax.rollout.engine import GenerateRequest, SamplingParams  # noqa: E402
from sage_jax.rollout.programs import EngineConfig  # noqa: E402
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer  # noqa: E402
from sage_jax.training.state import TrainState  # noqa: E402
from sage_jax.training.step import LossOptions, make_update_step, read_metrics  # noqa: E402

ROW_LENGTHS = range(work.LONGEST + -work.LONGEST % 128, 2 * work.LONGEST, 128)  # of agents: whole tiles of attention


def make_update(kl_coef: float):
    """Returns the update and its optimizer."""
    optimizer = make_optimizer(
        OptimizerOptions(learning_rate=work.LEARNING_RATE, weight_decay=work.WEIGHT_DECAY, eps=1e-8, max_grad_norm=None)
    )
    run = functools.partial(
        forward, MODEL, remat=args.remat, unroll=not args.scan, attention_implementation=args.attention
    )
    options = LossOptions(kl_coef=kl_coef, clip_low=work.CLIP, clip_high=work.CLIP, aggregation="sequence_mean")
    return make_update_step(run, head_weights, optimizer, options), optimizer


def sequence(ids, mask, advantage, number, logprobs=None) -> Sequence:
    """Returns one packed sequence's arrays; every trained token has the trajectory's advantage."""
    mask = np.asarray(mask, np.float32)
    engine = np.zeros(len(ids), np.float32) if logprobs is None else np.asarray(logprobs, np.float32)
    return Sequence(np.asarray(ids, np.int32), mask, mask * advantage, engine, number)


async def generate(engine: EmbeddedEngine, step: int):
    """Returns (prompt, generation) of every rollout of a step."""
    prompts = [work.prompt(step, index) for index in range(work.PROMPTS) for _ in range(work.GROUP)]

    async def one(number: int, ids: list[int]):
        sampling = SamplingParams(max_new_tokens=work.NEW_TOKENS, seed=1000 * step + number)
        made = await engine.generate(GenerateRequest(f"{step}.{number}", f"{step}.{number}", tuple(ids), sampling))
        await engine.end_session(f"{step}.{number}")
        return ids, made

    return await asyncio.gather(*(one(number, ids) for number, ids in enumerate(prompts)))


def grpo(watch: work.Stopwatch) -> None:
    """Generates, scores, updates: what a round of GRPO does."""
    params = init_params(MODEL, jax.random.key(0))
    update, optimizer = make_update(work.KL_COEF)
    config = EngineConfig.for_model(MODEL, work.PROMPTS * work.GROUP, work.PROMPT_TOKENS + work.NEW_TOKENS)
    engine = EmbeddedEngine(MODEL, params, config)
    state = TrainState.create(params, optimizer)
    groups = np.repeat(np.arange(work.PROMPTS), work.GROUP)
    row_length = args.row_length or work.PROMPT_TOKENS + work.NEW_TOKENS

    def learn(state, played):
        rewards = np.array([work.reward(list(made.ids)) for _, made in played])
        advantages, _ = group_advantages(rewards, groups)
        sequences = [
            sequence(
                [*ids, *made.ids],
                [0] * len(ids) + [1] * len(made.ids),
                advantages[number],
                number,
                [0.0] * len(ids) + list(made.logprobs),
            )
            for number, (ids, made) in enumerate(played)
        ]
        micro = micro_batches(pack(sequences, row_length=row_length), args.rows, capacity_multiple=128)
        state, metrics = update(state, micro, params)
        return state, read_metrics(metrics, state.params, step=0)

    for step in range(args.steps):
        if args.trace and step == args.steps - 1:
            jax.profiler.start_trace(args.trace)
        start = time.process_time()
        played = watch.wrap("generate", lambda step=step: asyncio.run(generate(engine, step)))()
        state, metrics = watch.wrap("reference and update", learn)(state, played)
        engine.update_weights(state.params, step + 1)
        watch.book("step", time.process_time() - start)
    if args.trace:
        jax.profiler.stop_trace()
    engine.close()
    work.report("sage_jax", sage_jax.__version__, watch, loss=metrics["loss/total"])


def agent(watch: work.Stopwatch) -> None:
    """Updates on packed agent trajectories, strictly on-policy and without a reference."""
    update, optimizer = make_update(0.0)
    state = TrainState.create(init_params(MODEL, jax.random.key(0)), optimizer)
    episodes = work.agent_trajectories(args.episodes, args.mix)
    row_length = args.row_length or best_row_length([len(one.ids) for one in episodes], ROW_LENGTHS)

    def learn(state):
        sequences = [sequence(one.ids, one.mask, one.advantage, number) for number, one in enumerate(episodes)]
        packed = pack(sequences, row_length=row_length)
        state, metrics = update(state, micro_batches(packed, 1, capacity_multiple=128))
        return state, read_metrics(metrics, state.params, step=0), packed.fill

    for step in range(args.steps):
        if args.trace and step == args.steps - 1:
            jax.profiler.start_trace(args.trace)
        state, metrics, fill = watch.wrap("update", learn)(state)
    if args.trace:
        jax.profiler.stop_trace()
    tokens = sum(len(one.ids) for one in episodes)
    work.report(
        "sage_jax",
        sage_jax.__version__,
        watch,
        tokens=tokens,
        fill=fill,
        row_length=row_length,
        loss=metrics["loss/total"],
    )


{"grpo": grpo, "agent": agent}[args.kind](work.Stopwatch())
