"""Traces some rounds with JAX's profiler, for TensorBoard or Perfetto (`profile_steps=10:13`)."""

from __future__ import annotations

import pathlib

import jax

from sage_jax.errors import ConfigError


def parse_steps(text: str) -> range:
    """Reads "10:13", rounds 10 to 12 counted from 0; "" is none.

    Raises:
      ConfigError: it is no such range.
    """
    first, colon, last = text.partition(":")
    if not text:
        return range(0)
    if not (colon and first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise ConfigError(f"profile_steps={text!r}: the form is first:last, e.g. 10:13 traces rounds 10, 11 and 12")
    return range(int(first), int(last))


class Trace:
    """Starts and stops the profiler by round. A run that goes on inside the range traces what is left of it."""

    def __init__(self, steps: str, folder: pathlib.Path):
        """Keeps the arguments; the trace goes to `folder`. Raises ConfigError, see `parse_steps`."""
        self._steps, self._folder, self._running = parse_steps(steps), folder, False

    def step(self, number: int) -> None:
        """To be called before round `number`."""
        if number in self._steps and not self._running:
            jax.profiler.start_trace(self._folder)
            self._running = True
        elif number not in self._steps:
            self.close()

    def close(self) -> None:
        """Writes the trace, when one is running."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
