"""Runs the sides of a comparison: each a script of benchmarks/rivals in a process of its own, with its own Python."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

RIVALS = pathlib.Path(__file__).parent / "rivals"


def run_side(python: str, script: str, *options: str) -> dict[str, Any]:
    """Runs one side; returns what it measured, and prints it to the error stream.

    Args:
      python: interpreter of an environment that has the side's libraries.
      script: file of benchmarks/rivals.
      options: its flags.

    Raises:
      SystemExit: the side failed; with the end of what it said.
    """
    command = [python, str(RIVALS / script), *options]
    environment = {**os.environ, "PYTHONPATH": str(RIVALS.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-3000:]}")
    print(lines[-1], file=sys.stderr, flush=True)
    return json.loads(lines[-1].removeprefix("RESULT "))
