"""Evaluate, check and export a run."""

import pathlib

import jax
import numpy as np
import pytest

from sage_jax.checkpoints import Checkpointer
from sage_jax.config import fingerprint, to_dataclass
from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.metrics import read_rows
from sage_jax.models import hf, lora
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training import modes
from sage_jax.training.loop import train
from sage_jax.training.policy import with_adapters
from sage_jax.training.state import TrainState


def test_sizes_come_from_the_model_folder_when_there_is_one(tiny_folder, tiny_cache, tmp_path, capsys):
    run = tiny_settings(tmp_path, tiny_folder, tiny_cache, model_preset="qwen2.5-7b-instruct")
    total = modes.check(run)
    printed = capsys.readouterr().out
    assert f"{sum(leaf.size for leaf in jax.tree.leaves(hf.load(tiny_folder)[1])):,} parameters" in printed
    assert "2 tasks x 3 rollouts = 6 episodes" in printed
    assert "at most 12 episodes a round" in printed
    assert 0 < total < 2**30


def test_probes_are_counted_only_where_they_are_played(tiny_folder, tiny_cache, tmp_path, capsys):
    modes.check(tiny_settings(tmp_path, tiny_folder, tiny_cache, utility=False))
    printed = capsys.readouterr().out
    assert "none" in next(line for line in printed.splitlines() if "probes" in line)


def test_without_folder_and_preset_there_are_no_sizes(tmp_path):
    with pytest.raises(ConfigError, match="set model_preset"):
        modes.check(to_dataclass({"model": str(tmp_path / "none")}, RunSettings))


def test_there_must_be_something_to_export(tiny_folder, tiny_cache, tmp_path):
    run = tiny_settings(tmp_path / "run", tiny_folder, tiny_cache)
    with pytest.raises(CheckpointError, match="no checkpoint to export"):
        modes.export(run)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_and_its_export_are_one_policy(tiny_session, tiny_folder, tiny_cache, tmp_path):
    run = tiny_settings(tmp_path, tiny_folder, tiny_cache)
    params = jax.tree.map(lambda leaf: leaf * 1.25, tiny_session.params)
    bank = SkillBank().add(category="general", title="search shelf", principle="start at shelf")
    saved = fingerprint(run)
    del saved["engine_dtype"]  # as if it was saved before that setting was there
    with Checkpointer(tmp_path / "checkpoints", fingerprint=saved) as checkpointer:
        state = TrainState.create(params, tiny_session.optimizer)
        checkpointer.save(
            3,
            {"state": state, "reference": tiny_session.params},
            {"round": 3, "bank": bank.snapshot(), "metrics_cursor": 0},
        )

    out = modes.export(run)
    _, exported = hf.load(out)
    jax.tree.map(np.testing.assert_array_equal, exported, params)
    assert {path.name for path in pathlib.Path(tiny_folder).iterdir()} <= {path.name for path in out.iterdir()}

    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "final.stamp").write_text("{}")
    rows = read_rows(modes.evaluate_run(run, "final"))
    assert {row.retrieval for row in rows} == {True, False}  # the checkpoint's bank
    assert not (tmp_path / "eval" / "final.stamp").exists()  # no training run takes these rows for its own
    plain = read_rows(modes.evaluate_run(tiny_settings(tmp_path / "other", out, tiny_cache), "final"))
    assert plain == [row for row in rows if not row.retrieval]
    start = read_rows(modes.evaluate_run(tiny_settings(tmp_path / "start", tiny_folder, tiny_cache), "final"))
    assert [row.tokens for row in start] != [row.tokens for row in plain]

    ahead = tiny_settings(tmp_path / "ahead", tiny_folder, tiny_cache, ahead=True)
    with modes.open_checkpoints(ahead) as checkpointer:
        arrays = {"state": state, "reference": tiny_session.params, "behind": tiny_session.params}
        checkpointer.save(4, arrays, {"round": 4, "bank": bank.snapshot(), "metrics_cursor": 0})
    assert modes.newest_checkpoint(ahead, tiny_session.model).step == 4

    with pytest.raises(CheckpointError, match="gamma was 0.2 and is 0.9"):
        modes.export(tiny_settings(tmp_path, tiny_folder, tiny_cache, gamma=0.9))


@pytest.mark.slow
def test_a_run_with_adapters_goes_on_bit_for_bit_and_exports_both_forms(tiny_folder, tiny_cache, tmp_path):
    def run(name, rounds):
        values = {"lora_rank": 2, "lora_targets": ("q", "down"), "sft_episodes": 0, "eval_episodes": 1}
        return tiny_settings(tmp_path / name, tiny_folder, tiny_cache, rounds=rounds, **values)

    train(run("whole", 2))
    train(run("parts", 1))
    train(run("parts", 2))
    states = []
    for name in ("whole", "parts"):
        with Checkpointer(tmp_path / name / "checkpoints", fingerprint=fingerprint(run(name, 2))) as checkpointer:
            states.append(checkpointer.restore().arrays["state"])
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert set(states[0]["params"]["layers"]) == {"attn", "mlp"}
    assert set(states[0]["params"]["layers"]["attn"]) == {"q"}

    out = modes.export(run("whole", 2))
    base, params = hf.load(tiny_folder)
    model = with_adapters(run("whole", 2), base)
    adapters = lora.load_adapter(out / "adapter", model)
    assert np.abs(adapters["layers"]["mlp"]["down"]["lora_b"]).max() > 0
    merged = lora.merge(model, lora.join(adapters, params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), hf.load(out)[1], merged)
