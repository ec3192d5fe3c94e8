"""Saves step after step until it is killed; a resumed loop must go on with exactly the arrays of the step before.

python save_loop.py FOLDER FIRST_STEPS
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from sage_jax.checkpoints import Checkpointer


def arrays_of(step: int) -> dict:
    """Returns arrays that are a function of the step, so that a mix of two steps is seen."""
    rng = np.random.default_rng(step)
    return {
        "params": {"w": jnp.asarray(rng.normal(size=(64, 64)), jnp.bfloat16), "b": jnp.full((300,), step, jnp.float32)},
        "key": jnp.asarray(rng.integers(0, 2**32, 2, dtype=np.uint32)),
        "step": jnp.int32(step),
    }


def document_of(step: int) -> dict:
    """Returns a document that is a function of the step."""
    return {"step": step, "log": [f"edit {number}" for number in range(step)]}


def main(folder: str) -> None:
    """Resumes, checks what it finds, and saves until killed."""
    with Checkpointer(folder, keep=2, fingerprint={"size": 64}) as checkpointer:
        step = 0
        if checkpointer.latest() is not None:
            restored = checkpointer.restore(arrays_of(0))
            assert_equal(restored.arrays, arrays_of(restored.step))
            assert restored.document == document_of(restored.step)
            assert restored.passed_over == ()
            step = restored.step
        print("resumed", step, flush=True)
        while True:
            step += 1
            checkpointer.save(step, arrays_of(step), document_of(step))
            print("saved", step, flush=True)


def assert_equal(left: dict, right: dict) -> None:
    """Compares two pytrees bit for bit, dtypes included."""
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


if __name__ == "__main__":
    main(sys.argv[1])
