"""Prints docs/metrics.md: `python -m sage_jax.metrics > docs/metrics.md`."""

from sage_jax.metrics.names import markdown

print(markdown(), end="")
