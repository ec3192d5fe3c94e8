"""Prints what prefill and decode of SmolLM2-135M cost on this machine: embedded engine, transformers, llama.cpp.

    third_party/smollm2/get.sh
    python -m benchmarks.smollm2 --batch=1,8,32 --context=256 --new=64
    third_party/llama_cpp/install.sh FOLDER
    PYTHONPATH=FOLDER python -m benchmarks.smollm2 --engines=embedded,transformers,llama_cpp,llama_cpp_q4_1

Every sequence has a random prompt of `context` tokens and samples exactly `new` tokens at temperature 1. A repeat takes
each engine in turn, once with all tokens and once with the first alone; decode is the difference. CPU seconds count all
threads of this process, so on a shared machine they are the figure to compare. transformers needs torch, which is in
requirements-test.txt. Prompts differ between repeats, so that no cache answers them. llama_cpp has the weights of
`--dtype`, llama_cpp_q4_1 the 4-bit blocks they come from.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from sage_jax.models import hf
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.programs import EngineConfig

FOLDER = "models/SmolLM2-135M-Instruct"


class Spent(NamedTuple):
    """Seconds of one call."""

    wall: float
    cpu: float


Generate = Callable[[np.ndarray, int], None]  # (prompts [B, T], new tokens)


def embedded(
    folder: str, batch: int, length: int, dtype: str, kv_dtype: str = ""
) -> tuple[Generate, Callable[[], None]]:
    """Returns our engine with one slot a sequence, compiled, and what closes it."""
    model, params = hf.load(folder, dtype=dtype, compute_dtype=dtype)
    engine = EmbeddedEngine(model, params, EngineConfig.for_model(model, batch, length, kv_dtype=kv_dtype))
    engine.warmup()
    calls = 0

    def generate(prompts: np.ndarray, new: int) -> None:
        nonlocal calls
        calls += 1
        asyncio.run(_gather(engine, prompts.tolist(), new, calls))

    return generate, engine.close


def embedded_kv16(folder: str, batch: int, length: int, dtype: str) -> tuple[Generate, Callable[[], None]]:
    """The same with keys and values kept in bfloat16; llama.cpp keeps them in 16 bits too."""
    return embedded(folder, batch, length, dtype, "bfloat16")


async def _gather(engine: EmbeddedEngine, prompts: list[list[int]], new: int, call: int) -> None:
    async def one(number: int, ids: list[int]) -> None:
        session, sampling = f"{call}.{number}", SamplingParams(new, seed=number)
        result = await engine.generate(GenerateRequest(session, session, tuple(ids), sampling))
        if len(result.ids) != new:
            raise RuntimeError(f"{len(result.ids)} tokens instead of {new}")
        await engine.end_session(session)

    await asyncio.gather(*(one(number, ids) for number, ids in enumerate(prompts)))


def transformers(folder: str, batch: int, length: int, dtype: str) -> tuple[Generate, Callable[[], None]]:
    """Returns transformers' generate, and what closes it (nothing)."""
    del batch, length
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def generate(prompts: np.ndarray, new: int) -> None:
        ids = torch.from_numpy(prompts)
        with torch.inference_mode():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=new, max_new_tokens=new, do_sample=True,
                top_k=0, top_p=1.0, pad_token_id=0,
            )  # fmt: skip
        if whole.shape[1] != prompts.shape[1] + new:
            raise RuntimeError(f"{whole.shape[1] - prompts.shape[1]} tokens instead of {new}")

    return generate, lambda: None


def llama_cpp(folder: str, batch: int, length: int, dtype: str) -> tuple[Generate, Callable[[], None]]:
    """Returns llama.cpp's batched decoding, with weights from its own file, and what frees it."""
    del folder
    from benchmarks import smollm2_llama_cpp

    return smollm2_llama_cpp.start(batch, length, dtype)


def llama_cpp_q4_1(folder: str, batch: int, length: int, dtype: str) -> tuple[Generate, Callable[[], None]]:
    """The same with 4-bit weights, whatever `dtype` says."""
    del dtype
    return llama_cpp(folder, batch, length, "q4_1")


ENGINES = {
    function.__name__: function for function in (embedded, embedded_kv16, transformers, llama_cpp, llama_cpp_q4_1)
}


def measure(call: Generate, prompts: np.ndarray, new: int) -> Spent:
    """Times one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call(prompts, new)
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def compare(args: argparse.Namespace, batch: int, dtype: str) -> None:
    """Prints one row for each engine at a batch and a dtype."""
    rng, vocabulary = np.random.default_rng(0), hf.read_config(args.model).vocab_size
    with contextlib.ExitStack() as stack:
        engines = {}
        for name in args.engines.split(","):
            engines[name], close = ENGINES[name](args.model, batch, args.context + args.new, dtype)
            stack.callback(close)
        spent: dict[str, list[tuple[Spent, Spent]]] = {name: [] for name in engines}
        for repeat in range(args.repeats + 1):
            for name, call in engines.items():
                draw = lambda: rng.integers(100, vocabulary, (batch, args.context))  # noqa: E731
                pair = measure(call, draw(), 1), measure(call, draw(), args.new)
                if repeat:  # the first is to warm up
                    spent[name].append(pair)
    for name, pairs in spent.items():
        print(_row(name, dtype, batch, args.context, args.new - 1, pairs), flush=True)


def _row(name: str, dtype: str, batch: int, context: int, steps: int, pairs: list[tuple[Spent, Spent]]) -> str:
    prefill = [batch * context / first.cpu for first, _ in pairs]
    decode = [batch * steps / max(both.cpu - first.cpu, 1e-9) for first, both in pairs]
    whole = [both.cpu for _, both in pairs]
    wall = min(both.wall for _, both in pairs)
    rates = " ".join(f"{statistics.median(x):8.1f} {min(x):8.1f}-{max(x):<8.1f}" for x in (prefill, decode))
    return f"{name:>14s} {dtype:>9s} {batch:5d} {rates} {statistics.median(whole):8.2f} {wall:8.2f}"


def main() -> None:
    """Reads the flags and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=FOLDER)
    parser.add_argument("--engines", default="embedded,transformers")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    print(
        f"{jax.devices()[0].device_kind}; prompt {args.context}, {args.new} sampled; median and range of {args.repeats}"
    )
    print(f"{'':>30s} {'prefill tokens per CPU s':>26s} {'decode tokens per CPU s':>26s} {'CPU s':>8s} {'wall s':>8s}")
    for dtype in args.dtype.split(","):
        for batch in map(int, args.batch.split(",")):
            compare(args, batch, dtype)


if __name__ == "__main__":
    main()
