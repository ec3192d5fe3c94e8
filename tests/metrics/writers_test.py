"""Metrics and trajectories on disk, and what a resumed run finds there."""

import json
import struct

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from sage_jax.errors import ConfigError, DataError
from sage_jax.metrics import MetricsWriter, read_metrics, write_trajectories
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

TASK = Task(id="game-7", benchmark="alfworld", split="train", family="heat", payload={"path": "g"})


def test_lines_hold_step_time_and_numbers(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"reward/mean": 0.5, "lr": jnp.float32(0.25), "bank/size": np.int64(3)})
        writer.write(2, {"loss/total": float("nan"), "loss/ratio_max": float("inf")})
    first, second = read_metrics(tmp_path)
    assert first.pop("time") > 1e9
    assert first == {"step": 1, "reward/mean": 0.5, "lr": 0.25, "bank/size": 3.0}
    assert second["loss/total"] is None
    assert second["loss/ratio_max"] is None


def test_unknown_name_is_refused_and_leaves_no_line(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        with pytest.raises(ConfigError, match="reward/mean"):
            writer.write(1, {"lr": 1.0, "reward/meen": 0.5})
        assert writer.cursor() == 0


def test_resumed_run_cuts_back_to_the_checkpoint(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(1, {"lr": 1.0})
        cursor = writer.cursor()
        writer.write(2, {"lr": 2.0})
        writer.write(3, {"lr": 3.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "l')  # the line that a kill cut short
    with MetricsWriter(tmp_path, cursor=cursor, step=1, tensorboard=False) as writer:
        writer.write(2, {"lr": 20.0})
    assert [(line["step"], line["lr"]) for line in read_metrics(tmp_path)] == [(1, 1.0), (2, 20.0)]


def test_run_without_a_checkpoint_starts_anew(tmp_path):
    for _ in range(2):
        with MetricsWriter(tmp_path, tensorboard=False) as writer:
            writer.write(1, {"lr": 1.0})
    assert len(read_metrics(tmp_path)) == 1


def test_lost_lines_are_an_error(tmp_path):
    with pytest.raises(DataError, match="has 0 bytes but the checkpoint was saved at 9"):
        MetricsWriter(tmp_path, cursor=9, tensorboard=False)


def read_scalars(folder):
    """Reads TensorBoard's record files: length (8 bytes), checksum (4), event, checksum (4)."""
    found = []
    for path in sorted(folder.iterdir()):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            place += length + 16
    return found


def test_tensorboard_has_the_same_numbers(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"lr": 0.5})
        writer.write(2, {"lr": 0.25})
    assert read_scalars(tmp_path / "tensorboard") == [("lr", 1, 0.5), ("lr", 2, 0.25)]


def make_trajectory(value: float | None = 1.0) -> Trajectory:
    act = Turn("act", (1, 2), (3,), (-0.123456789,), True, weight_version=4, advantage=0.5, info={"action": "look"})
    shaped = RewardResult(-0.5, parts={"invalid": -0.5})
    review = Turn("review", (4,), (5, 6), (-0.1, -0.2), False, finish_reason="length", reward=shaped)
    reward = RewardResult(None, Status.ENV_ERROR) if value is None else RewardResult(value, parts={"won": value})
    return Trajectory(TASK, "group-1", 2**62, (act, review), reward, {"success": True})


def test_trajectory_can_be_read(tmp_path):
    path = write_trajectories(tmp_path, 3, [make_trajectory()], decode=lambda ids: "ü" * len(ids))
    assert path == tmp_path / "rounds" / "0003.jsonl"
    record = json.loads(path.read_text())
    assert record["task"]["payload"] == {"path": "g"}
    assert record["reward"] == {"value": 1.0, "status": "ok", "parts": {"won": 1.0}}
    assert record["seed"] == 2**62
    act, review = record["turns"]
    assert (act["prompt"], act["text"], act["prompt_ids"], act["output_ids"]) == ("üü", "ü", [1, 2], [3])
    assert (act["advantage"], act["reward"], act["logprobs"]) == (0.5, None, [-0.123457])
    assert (review["advantage"], review["reward"]["value"], review["finish_reason"]) == (None, -0.5, "length")
    assert "ü" in path.read_text()


def test_failed_rollout_has_a_status_and_no_number(tmp_path):
    path = write_trajectories(tmp_path, 0, [make_trajectory(None)])
    record = json.loads(path.read_text())
    assert record["reward"] == {"value": None, "status": "env_error", "parts": {}}
    assert "text" not in record["turns"][0]


def test_round_played_again_replaces_its_file(tmp_path):
    write_trajectories(tmp_path, 1, [make_trajectory()] * 3)
    path = write_trajectories(tmp_path, 1, [make_trajectory()])
    assert len(path.read_text().splitlines()) == 1
    assert [item.name for item in path.parent.iterdir()] == ["0001.jsonl"]
