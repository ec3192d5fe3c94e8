"""Memory of an update as XLA plans it, against batch, length and vocabulary; nothing is run or allocated.

    python -m benchmarks.memory                  # some minutes
    python -m benchmarks.memory --rows=1,2       # other batches

Each line is one compiled update (`training.step`) on one CPU device: AdamW in float32, remat "full", all tokens
trained on. "working" is XLA's temporary memory. Of it, "head" is what a head of V entries needs whatever the loss
does: its gradient once in the sum over micro-batches and once in the micro-batch being added. The rest should not
grow with V.
"""

from __future__ import annotations

import functools

import jax
import rich.box
import rich.console
import rich.table
from absl import app, flags

from sage_jax.models import forward, head_weights, preset
from sage_jax.training.batches import abstract_batch
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.state import abstract_on_mesh, abstract_state
from sage_jax.training.step import LossOptions, make_update_step

_ROWS = flags.DEFINE_list("rows", ["2", "4", "8"], "Rows of a micro-batch.")
_LENGTHS = flags.DEFINE_list("lengths", ["512", "1024", "2048"], "Tokens of a row.")
_VOCABS = flags.DEFINE_list("vocabs", ["8192", "32000", "151936"], "Entries of the vocabulary.")
_MODEL = flags.DEFINE_string("model", "benchmark-8m", "Preset whose vocabulary is replaced.")
_SWITCH = flags.DEFINE_bool("each", True, "Vary one number at a time, about the middle one; False takes all of them.")

MIB = 2**20


def working_memory(model_name: str, rows: int, length: int, vocab: int) -> tuple[int, int]:
    """Returns the bytes an update works with besides its state, and those of them that are the head's gradients."""
    model = preset(model_name, vocab_size=vocab, max_position=max(length, 2048))
    optimizer = make_optimizer(OptimizerOptions())
    update = make_update_step(functools.partial(forward, model, remat="full"), head_weights, optimizer, LossOptions())
    state = abstract_state(abstract_on_mesh(model), optimizer)
    compiled = update.jitted.lower(state, abstract_batch(2, rows, length, rows * length), None).compile()
    return compiled.memory_analysis().temp_size_in_bytes, 2 * 4 * vocab * model.hidden_size


def cases(rows: list[int], lengths: list[int], vocabs: list[int], *, each: bool) -> list[tuple[int, int, int]]:
    """Returns the (rows, length, vocabulary) to compile."""
    if not each:
        return [(row, length, vocab) for row in rows for length in lengths for vocab in vocabs]
    row, length, vocab = rows[len(rows) // 2], lengths[len(lengths) // 2], vocabs[0]
    chosen = [(row, length, one) for one in vocabs]
    chosen += [(one, length, vocab) for one in rows if one != row]
    return chosen + [(row, one, vocab) for one in lengths if one != length]


def main(argv: list[str]) -> None:
    """Prints the table."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}")
    table = rich.table.Table("rows", "length", "V", "working", "head", "rest", "rest / first", box=rich.box.SIMPLE_HEAD)
    numbers = [[int(one) for one in flag.value] for flag in (_ROWS, _LENGTHS, _VOCABS)]
    first = None
    for rows, length, vocab in cases(*numbers, each=_SWITCH.value):
        total, head = working_memory(_MODEL.value, rows, length, vocab)
        first = first or total - head
        parts = [f"{size / MIB:,.0f} MiB" for size in (total, head, total - head)]
        table.add_row(str(rows), str(length), f"{vocab:,}", *parts, f"{(total - head) / first:.2f}")
    print(f"{_MODEL.value} on {jax.default_backend()}, jax {jax.__version__}")
    rich.console.Console(width=110).print(table)


if __name__ == "__main__":
    app.run(main)
