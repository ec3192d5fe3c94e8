"""Named random streams: every random choice is a pure function of (run seed, stream name, counters).

Nothing splits and stores a key, so a resume, another logging interval or an extra evaluation cannot shift a stream.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, stream: str, *counters: int | str) -> int:
    """Returns a 63-bit seed for a named stream; the same on every machine and Python version."""
    text = "/".join([str(int(seed)), stream, *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def numpy_rng(seed: int, stream: str, *counters: int | str) -> np.random.Generator:
    """Returns a NumPy generator for a named stream."""
    return np.random.default_rng(derive_seed(seed, stream, *counters))


def jax_key(seed: int, stream: str, *counters: int | str):
    """Returns a jax key for a named stream (jax is imported here so that workers need not)."""
    import jax

    return jax.random.key(derive_seed(seed, stream, *counters) & 0xFFFFFFFF)
