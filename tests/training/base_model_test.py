"""Pre-training of the base model: its batches, its files, and that an interrupted run ends where a whole one does."""

import dataclasses
import hashlib
import json
import shutil

import jax
import numpy as np
import pytest
from transformers import AutoTokenizer

from sage_jax.checkpoints import Checkpointer
from sage_jax.data import code_corpus
from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.models import hf
from sage_jax.training.base_model import BaseModelSettings, _batch, train_base_model

TINY = BaseModelSettings(
    updates=3,
    tokens=512,
    short_rows=256,
    long_rows=256,
    short_share=0.5,
    vocab_size=384,
    hidden_size=64,
    intermediate_size=64,
    num_layers=1,
    save_every=2,
)


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    """Compiles in less than half of the time; what is compiled runs slower, which three updates do not feel."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A whole run: (its work folder, its output folder, the metrics returned)."""
    folder = tmp_path_factory.mktemp("whole")
    values = train_base_model(TINY, folder / "work", folder / "out")
    return folder / "work", folder / "out", values


def restore(work):
    with Checkpointer(work / "checkpoints", fingerprint=dataclasses.asdict(TINY)) as checkpointer:
        return checkpointer.restore()


def test_a_run_leaves_a_model_a_tokenizer_and_a_card(whole):
    _, out, values = whole
    assert np.isfinite(values["sft/loss"])
    assert values["update/step_norm"] > 0
    card = json.loads((out / "card.json").read_text())
    assert card["settings"] == dataclasses.asdict(TINY)
    assert card["metrics"]["seconds"] > 0
    assert {name: card["metrics"][name] for name in values} == values
    assert card["sha256"] == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    config, params = hf.load(out)
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (384, 64, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert (len(tokenizer), tokenizer.eos_token) == (384, "<|end|>")


def test_an_interrupted_run_ends_bit_for_bit_where_a_whole_one_does(whole, tmp_path):
    work, out, values = whole
    shutil.copytree(work, tmp_path / "work")
    checkpoints = tmp_path / "work" / "checkpoints"
    (checkpoints / "manifests" / "3.json").unlink()  # as if killed after the checkpoint of update 2
    shutil.rmtree(checkpoints / "steps" / "3")
    resumed = train_base_model(TINY, tmp_path / "work", tmp_path / "out")
    assert resumed == values
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    first, second = restore(work), restore(tmp_path / "work")
    assert first.step == second.step == 3
    leaves = list(zip(jax.tree.leaves(first.arrays), jax.tree.leaves(second.arrays), strict=True))
    assert len(leaves) > 20  # parameters and the optimizer's state
    assert all(np.array_equal(a, b) for a, b in leaves)


def test_a_finished_run_is_not_trained_again(whole, tmp_path):
    work, out, values = whole
    assert train_base_model(TINY, work, tmp_path) == values
    assert (tmp_path / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert json.loads((tmp_path / "card.json").read_text())["metrics"]["sft/loss"] == values["sft/loss"]


def test_a_run_may_go_on_from_a_model(whole, tmp_path):
    _, out, _ = whole
    onward = dataclasses.replace(TINY, updates=1, learning_rate=1e-9, start=str(out))
    train_base_model(onward, tmp_path / "work", tmp_path / "out")
    (_, before), (_, after) = hf.load(out), hf.load(tmp_path / "out")
    moved = [float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
    assert 0 < max(moved) < 1e-6
    with pytest.raises(ConfigError, match=r"start=.*vocabulary of 384.*where 400"):
        train_base_model(dataclasses.replace(onward, vocab_size=400), tmp_path / "other", tmp_path / "out")


def test_a_folder_of_other_settings_is_refused(whole, tmp_path):
    work, _, _ = whole
    with pytest.raises(CheckpointError, match="learning_rate was 0.003 and is 0.1"):
        train_base_model(dataclasses.replace(TINY, learning_rate=0.1), work, tmp_path)


@pytest.mark.parametrize("step", [0, 40, 70, 99])
def test_a_batch_is_a_function_of_seed_and_step(word_tokenizer, step):
    settings = dataclasses.replace(BaseModelSettings(), updates=100, tokens=2048)
    batch, again = _batch(settings, word_tokenizer, step), _batch(settings, word_tokenizer, step)
    assert all(np.array_equal(a, b) for a, b in zip(batch[:9], again[:9], strict=True))
    others = (
        _batch(settings, word_tokenizer, step + 1),
        _batch(dataclasses.replace(settings, seed=1), word_tokenizer, step),
    )
    assert not any(np.array_equal(batch.ids, other.ids) for other in others if other.ids.shape == batch.ids.shape)
    assert batch.ids.shape[1:] == ((4, 512) if step < 60 else (2, 1024))
    live = batch.segment_ids > 0
    assert word_tokenizer.unk_token_id not in batch.ids[live]
    assert word_tokenizer.pad_token_id not in batch.ids[live]
    assert not batch.ids[~live].any()
    assert batch.mask.sum() > 100
    trained = batch.mask > 0
    following = np.take_along_axis(batch.ids.reshape(len(batch.ids), -1), batch.source + 1, axis=1)
    assert np.array_equal(following[trained], batch.targets[trained])


def test_the_first_updates_copy_lists_in_short_rows():
    settings = BaseModelSettings(corpus="code", vocab_size=1280, updates=40, copy_updates=20, tokens=2048)
    tokenizer = code_corpus.make_tokenizer(1280)
    copied, after = _batch(settings, tokenizer, 19), _batch(settings, tokenizer, 20)
    assert copied.ids.shape[1:] == (8, 128)
    assert after.ids.shape[1:] == (4, 512)
    row = copied.ids[0, 0][copied.segment_ids[0, 0] == 1]
    asked, answered = tokenizer.decode(row).split("<|assistant|>")
    assert asked.removeprefix("<|user|>").split() == answered.removesuffix("<|end|>").split()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"copy_updates": -1}, "copy_updates=-1"),
        ({"copy_updates": 10_000}, "copy_updates=10000: must be from 0 to updates - 1"),
        ({"copy_updates": 1}, "corpus='household' has no copy_exercise"),
        ({"tokens": 200}, "tokens=200"),
        ({"short_rows": 16}, "short_rows=16"),
        ({"long_rows": 16}, "long_rows=16"),
        ({"updates": 0}, "updates=0"),
        ({"save_every": 0}, "save_every=0"),
        ({"hidden_size": 80}, "hidden_size=80"),
        ({"hidden_size": 32}, "hidden_size=32"),
    ],
)
def test_settings_that_cannot_train_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TINY, **change)


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="vocab_size=100"):
        train_base_model(dataclasses.replace(TINY, vocab_size=100), tmp_path, tmp_path)
