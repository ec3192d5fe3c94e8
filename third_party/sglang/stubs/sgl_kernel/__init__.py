"""Stands in for SGLang's CPU kernels, which exist as source only: SGLang imports the names and then goes without.

What is served stays right, because SGLang asks whether torch has the operators before it uses one. The exception is
the assignment below, which it always calls.
"""


def assign_req_to_token_pool_cpu(rows, table, starts, ends, locations, width):
    """Writes the cache locations of each request into its row of the table, in order."""
    del width
    offset = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = end - start
        table[row, start:end] = locations[offset : offset + count].to(table.dtype)
        offset += count


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def unavailable(*arguments, **options):
        raise NotImplementedError(f"sgl_kernel.{name}: this environment has no CPU kernels")

    return unavailable
