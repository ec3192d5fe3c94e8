"""Progress with an estimate of the time left: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

import rich.console
import rich.progress


class Progress:
    """Counts finished units of work and says how long the rest will take. Made by `show_progress`."""

    def __init__(self, label: str, total: int, done: int, stream: TextIO, interval: float):
        """See `show_progress`."""
        self._label, self._total, self._done, self._first = label, total, done, done
        self._stream, self._interval = stream, interval
        self._start = time.monotonic()
        self._last_line: float | None = None
        self._bar: rich.progress.Progress | None = None
        if stream.isatty():
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TimeElapsedColumn(),
                rich.progress.TimeRemainingColumn(),
                rich.progress.TextColumn("{task.fields[values]}"),
                console=rich.console.Console(file=stream),
            )
            self._task = self._bar.add_task(label, total=total, completed=done, values="")
            self._bar.start()

    def advance(self, amount: int = 1, values: Mapping[str, float] | None = None) -> None:
        """Counts `amount` more units; `values` are shown beside the bar."""
        self._done += amount
        shown = "  ".join(f"{name} {value:.3g}" for name, value in (values or {}).items())
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, values=shown)
            return
        now = time.monotonic()
        due = self._last_line is None or now - self._last_line >= self._interval
        if due or self._done >= self._total:
            self._last_line = now
            elapsed = now - self._start
            left = elapsed / max(self._done - self._first, 1) * (self._total - self._done)
            times = f"{_clock(elapsed)} elapsed, {_clock(left)} left"
            print(f"{self._label} {self._done}/{self._total}  {times}  {shown}".rstrip(), file=self._stream, flush=True)

    def close(self) -> None:
        """Stops the bar."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def show_progress(
    label: str, total: int, *, done: int = 0, stream: TextIO | None = None, interval: float = 10.0
) -> Iterator[Progress]:
    """Shows the progress of a stage while the block runs.

    Args:
      label: what is being done.
      total: units of work in all.
      done: units finished before (a resumed run); they do not enter the estimate.
      stream: where to write; standard output by default.
      interval: least seconds between two plain lines; the first and the last are always written.
    """
    shown = Progress(label, total, done, sys.stdout if stream is None else stream, interval)
    try:
        yield shown
    finally:
        shown.close()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
