"""Writers of what a run leaves behind: metrics.jsonl with TensorBoard beside it, and readable trajectories.

Both survive a kill: metrics are cut back to the cursor that the checkpoint holds, and a round's trajectories replace
what an earlier try at the same round wrote, so a resumed run leaves no line twice.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensorboardX import SummaryWriter

from sage_jax.errors import DataError
from sage_jax.metrics.names import check_names
from sage_jax.types import RewardResult, Trajectory, Turn


class MetricsWriter:
    """Appends one line per `write` to metrics.jsonl and the same scalars to TensorBoard.

    Attributes:
      path: the metrics.jsonl file.
    """

    def __init__(self, run_dir: str | pathlib.Path, *, cursor: int = 0, step: int = 0, tensorboard: bool = True):
        """Opens the files of a run.

        Args:
          run_dir: the run's folder; made when missing.
          cursor: what `cursor()` gave when the checkpoint that the run continues from was saved; 0 starts anew.
          step: step of that checkpoint; TensorBoard hides later events of the killed run.
          tensorboard: also write TensorBoard events.

        Raises:
          DataError: metrics.jsonl is shorter than the cursor, so lines are lost.
        """
        self.path = pathlib.Path(run_dir) / "metrics.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        size = self.path.stat().st_size
        if size < cursor:
            raise DataError(f"{self.path} has {size} bytes but the checkpoint was saved at {cursor}: lines are missing")
        os.truncate(self.path, cursor)
        self._file = self.path.open("a", encoding="utf-8")
        self._board = (
            SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=step + 1 if cursor else 0)
            if tensorboard
            else None
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line.

        Args:
          step: round (or optimizer step of the cold start) that the values belong to.
          values: metric name to number; NumPy and jax scalars are welcome.

        Raises:
          ConfigError: a name is not in the table of names.
        """
        check_names(values)
        scalars = {name: float(value) for name, value in values.items()}
        line = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self._file.write(json.dumps({"step": int(step), "time": round(time.time(), 3), **line}) + "\n")
        self._file.flush()
        for name, value in scalars.items():
            if self._board is not None:
                self._board.add_scalar(name, value, int(step))

    def cursor(self) -> int:
        """Returns the size of metrics.jsonl in bytes, all of it on disk; belongs into the checkpoint."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self.path.stat().st_size

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(run_dir: str | pathlib.Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl as dicts, oldest first.

    Raises:
      DataError: the file is missing or a line is no JSON; names file and line.
    """
    return read_jsonl(pathlib.Path(run_dir) / "metrics.jsonl")


def read_jsonl(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSONL file.

    Raises:
      DataError: the file is missing or a line is no JSON; names file and line.
    """
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number} is no JSON: {error}") from error
    return records


def write_trajectories(
    run_dir: str | pathlib.Path,
    round_number: int,
    trajectories: Iterable[Trajectory],
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> pathlib.Path:
    """Writes rounds/NNNN.jsonl, one trajectory a line, in one atomic step; returns its path.

    Args:
      run_dir: the run's folder.
      round_number: the round; an earlier file of the same round is replaced.
      trajectories: in any order; kept.
      decode: ids -> text, to add readable `prompt` and `text` to each turn.
    """
    path = pathlib.Path(run_dir) / "rounds" / f"{round_number:04d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json.dumps(trajectory_record(trajectory, decode), ensure_ascii=False) + "\n")
    os.replace(part, path)
    return path


def trajectory_record(trajectory: Trajectory, decode: Callable[[Sequence[int]], str] | None = None) -> dict[str, Any]:
    """Returns a trajectory as plain JSON values, texts first so that a line can be read."""
    return {
        "task": dataclasses.asdict(trajectory.task),
        "group": trajectory.group,
        "seed": trajectory.seed,
        "reward": _reward_record(trajectory.reward),
        "info": dict(trajectory.info),
        "turns": [_turn_record(turn, decode) for turn in trajectory.turns],
    }


def _turn_record(turn: Turn, decode: Callable[[Sequence[int]], str] | None) -> dict[str, Any]:
    texts = {} if decode is None else {"prompt": decode(turn.prompt_ids), "text": decode(turn.output_ids)}
    return {
        "stream": turn.stream,
        **texts,
        "advantage": turn.advantage,
        "reward": None if turn.reward is None else _reward_record(turn.reward),
        "finish_reason": turn.finish_reason,
        "weight_version": turn.weight_version,
        "weight_versions": [[span.version, span.start, span.end] for span in turn.weight_versions],
        "starts_context": turn.starts_context,
        "info": dict(turn.info),
        "prompt_ids": list(turn.prompt_ids),
        "output_ids": list(turn.output_ids),
        "logprobs": [round(value, 6) for value in turn.logprobs],
    }


def _reward_record(reward: RewardResult) -> dict[str, Any]:
    return {"value": reward.value, "status": reward.status.value, "parts": dict(reward.parts)}
