"""Checkpoints: exact, whole or absent, and never silently wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from sage_jax.checkpoints import Checkpointer, CheckpointWarning
from sage_jax.errors import CheckpointError

FINGERPRINT = {"learning_rate": 0.1, "shape": (2, 3), "family": None}


def make_arrays(seed: int = 0):
    rng = np.random.default_rng(seed)
    params = {
        "half": jnp.asarray(rng.normal(size=(5, 7)), jnp.bfloat16),
        "single": jnp.asarray([0.1, -0.0, np.inf, np.nan, 1e-42], jnp.float32),
        "key": jnp.asarray([1, 2**32 - 1], jnp.uint32),
        "scalar": jnp.int32(seed),
        "flags": jnp.array([True, False]),
    }
    optimizer = optax.adamw(1e-3)
    return {"params": params, "optimizer": optimizer.init({"half": params["half"]}), "step": jnp.int32(seed)}


def same_bits(left, right) -> bool:
    leaves = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in leaves)


def open_at(folder, **options) -> Checkpointer:
    return Checkpointer(folder, **{"fingerprint": FINGERPRINT, **options})


@pytest.fixture
def three_steps(tmp_path):
    """A folder with steps 1, 2 and 3."""
    with open_at(tmp_path / "checkpoints", keep=3) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, make_arrays(step), {"step": step})
    return tmp_path / "checkpoints"


def test_everything_comes_back_bit_for_bit(tmp_path):
    arrays = make_arrays(4)
    document = {"seed": 2**62, "cursor": [1, 2], "text": "é\n", "nested": {"share": 0.1, "none": None, "yes": True}}
    with open_at(tmp_path) as checkpointer:
        checkpointer.save(4, arrays, document)
    with open_at(tmp_path) as checkpointer:
        template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
        for wanted in (arrays, template):
            restored = checkpointer.restore(wanted)
            assert same_bits(restored.arrays, arrays)
            assert jax.tree.structure(restored.arrays) == jax.tree.structure(arrays)
        assert restored.document == document
        assert restored.step == checkpointer.latest() == 4
        loose = checkpointer.restore().arrays
        assert same_bits(loose["params"], arrays["params"])


def test_nnx_state_comes_back(tmp_path):
    state = nnx.state(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    other = nnx.state(nnx.Linear(3, 4, rngs=nnx.Rngs(1)))
    with open_at(tmp_path) as checkpointer:
        checkpointer.save(1, state, {})
        restored = checkpointer.restore(other).arrays
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert same_bits(restored, state)
    assert not same_bits(restored, other)


def test_newest_steps_and_every_nth_are_kept(tmp_path):
    with open_at(tmp_path, keep=2, keep_every=3) as checkpointer:
        for step in range(8):
            checkpointer.save(step, {"x": jnp.int32(step)}, {})
        assert checkpointer.steps() == [0, 3, 6, 7]
    assert sorted(int(path.name) for path in (tmp_path / "steps").iterdir()) == [0, 3, 6, 7]


def test_empty_folder_has_no_latest_and_restoring_says_so(tmp_path):
    with open_at(tmp_path) as checkpointer:
        assert checkpointer.latest() is None
        with pytest.raises(CheckpointError, match="it is empty"):
            checkpointer.restore()


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(CheckpointError, match="keep=0"):
        open_at(tmp_path, keep=0)


def test_another_configuration_is_refused_and_the_keys_are_named(three_steps):
    other = {**FINGERPRINT, "learning_rate": 0.2, "new": 1}
    with open_at(three_steps, fingerprint=other) as checkpointer, pytest.raises(CheckpointError) as caught:
        checkpointer.restore()
    assert "learning_rate was 0.1 and is 0.2" in str(caught.value)
    assert "new was None and is 1" in str(caught.value)
    assert "shape" not in str(caught.value)


def test_a_key_that_is_newer_than_the_checkpoint_had_its_default(three_steps):
    newer = {**FINGERPRINT, "new": (1, 2)}
    with open_at(three_steps, fingerprint=newer, defaults={"new": (1, 2), "free": 3}) as checkpointer:
        checkpointer.check_fingerprint()
        assert checkpointer.restore().step == checkpointer.latest()
    other = {**newer, "new": (1, 3)}
    message = r"new was \[1, 2\] and is \[1, 3\]"
    with (
        open_at(three_steps, fingerprint=other, defaults={"new": (1, 2)}) as checkpointer,
        pytest.raises(CheckpointError, match=message),
    ):
        checkpointer.check_fingerprint()


def test_other_arrays_are_refused_and_named(three_steps):
    arrays = make_arrays(0)
    arrays["params"]["half"] = arrays["params"]["half"].astype(jnp.float32)
    del arrays["params"]["flags"]
    with open_at(three_steps) as checkpointer, pytest.raises(CheckpointError) as caught:
        checkpointer.restore(arrays)
    assert "['params']['half'] is [[5, 7], 'bfloat16'] saved and [[5, 7], 'float32'] wanted" in str(caught.value)
    assert "['params']['flags']" in str(caught.value)


@pytest.mark.parametrize(
    ("document", "place"),
    [({"a": {1: 2}}, "document.a has the key 1"), ({"a": [0, np.float32(1)]}, r"document.a\[1\] is a float32")],
)
def test_document_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path, document, place):
    with open_at(tmp_path) as checkpointer:
        with pytest.raises(CheckpointError, match=place):
            checkpointer.save(1, {"x": jnp.int32(1)}, document)
        assert checkpointer.latest() is None


def test_flipped_bit_in_any_file_is_found_and_the_step_before_is_used(three_steps):
    step = three_steps / "steps" / "3"
    files = [path for path in sorted(step.rglob("*")) if path.is_file() and path.stat().st_size]
    files.append(three_steps / "manifests" / "3.json")
    assert len(files) > 8
    for number, path in enumerate(files):
        sound = path.read_bytes()
        place = (number * 7919) % len(sound)
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << number % 8]) + sound[place + 1 :])
        with open_at(three_steps) as checkpointer, pytest.warns(CheckpointWarning, match="checkpoint 3 is damaged"):
            restored = checkpointer.restore(make_arrays())
        path.write_bytes(sound)
        assert restored.step == 2, path
        assert same_bits(restored.arrays, make_arrays(2))
        assert restored.document == {"step": 2}
        assert [number for number, _ in restored.passed_over] == [3]
    with open_at(three_steps) as checkpointer:
        assert checkpointer.restore().step == 3


def test_missing_and_cut_files_are_found(three_steps):
    for step in (3, 2):
        path = next((three_steps / "steps" / str(step) / "arrays" / "d").iterdir())
        if step == 3:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1])
    with open_at(three_steps) as checkpointer, pytest.warns(CheckpointWarning):
        restored = checkpointer.restore()
    assert restored.step == 1
    assert "missing" in restored.passed_over[0][1]
    assert "changed" in restored.passed_over[1][1]


def test_when_every_step_is_damaged_the_error_tells_all(three_steps):
    for manifest in (three_steps / "manifests").iterdir():
        manifest.write_text("{")
    with open_at(three_steps) as checkpointer:
        assert checkpointer.latest() == 3
        with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=r"step 3: .*step 2: .*step 1: "):
            checkpointer.restore()


def test_a_step_asked_for_by_number_has_no_stand_in(three_steps):
    with open_at(three_steps) as checkpointer:
        assert checkpointer.restore(step=2).document == {"step": 2}
        (three_steps / "steps" / "2" / "_CHECKPOINT_METADATA").unlink()
        with pytest.raises(CheckpointError, match="step 2: file _CHECKPOINT_METADATA is missing"):
            checkpointer.restore(step=2)
        with pytest.raises(CheckpointError, match="step 9"):
            checkpointer.restore(step=9)


def test_run_goes_on_over_a_damaged_step(three_steps):
    (three_steps / "steps" / "3" / "_CHECKPOINT_METADATA").unlink()
    with open_at(three_steps) as checkpointer:
        with pytest.warns(CheckpointWarning):
            assert checkpointer.restore().step == 2
        checkpointer.save(3, make_arrays(33), {"step": 33})
        restored = checkpointer.restore(make_arrays())
    assert restored.document == {"step": 33}
    assert same_bits(restored.arrays, make_arrays(33))


def test_unfinished_step_does_not_count_and_is_cleaned_up(three_steps):
    (three_steps / "manifests" / "3.json").rename(three_steps / "manifests" / "3.part")
    with open_at(three_steps) as checkpointer:
        assert checkpointer.latest() == 2
        assert not (three_steps / "steps" / "3").exists()
        assert not (three_steps / "manifests" / "3.part").exists()
        checkpointer.save(3, make_arrays(3), {})
        assert checkpointer.restore().step == 3
