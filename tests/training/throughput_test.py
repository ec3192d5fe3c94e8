"""Arithmetic of an update against a count by hand, and its share of a peak."""

import dataclasses
import types

import numpy as np
import pytest

from sage_jax.data.packing import Sequence, pack
from sage_jax.data.prefixes import pack_shared
from sage_jax.models.config import LoraConfig, ModelConfig
from sage_jax.training.throughput import mfu, update_flops

MODEL = ModelConfig(
    vocab_size=10, hidden_size=4, intermediate_size=3, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=2
)
# q 4 x 4, k and v 4 x 2, o 4 x 4, and three of 4 x 3.
LAYER = 16 + 8 + 8 + 16 + 36


def batch(pack_rows=pack):
    sequences = [
        Sequence(np.array([1, 2, last]), np.array([0.0, 0, 1]), np.ones(3), np.zeros(3), last) for last in (3, 4)
    ]
    return pack_rows(sequences, row_length=8)


def test_counted_by_hand():
    # 6 tokens; each sequence's queries see 1 + 2 + 3 keys; 2 trained tokens.
    forward = 2 * 6 * LAYER * 2 + 4 * 12 * 4 * 2 + 2 * 2 * 4 * 10
    assert update_flops(MODEL, batch()) == 3 * forward
    assert update_flops(MODEL, batch(), reference=True) == 4 * forward


def test_a_shared_prefix_is_computed_once():
    # [1 2 3] and the branch [2 4]: its last token is trained on, so that it repeats the one before it.
    forward = 2 * 5 * LAYER * 2 + 4 * (1 + 2 + 3 + 2 + 3) * 4 * 2 + 2 * 2 * 4 * 10
    assert update_flops(MODEL, batch(pack_shared)) == 3 * forward


def test_frozen_weights_have_no_gradient_of_their_own():
    model = dataclasses.replace(MODEL, lora=LoraConfig(rank=1, targets=("gate",)))
    adapters, attention, head = 2 * (4 + 3), 4 * 12 * 4 * 2, 2 * 2 * 4 * 10
    want = 2 * 6 * (2 * LAYER * 2 + 3 * adapters) + 3 * attention + 2 * head
    assert update_flops(model, batch()) == want


@pytest.mark.parametrize(("kind", "peak"), [("TPU v5 lite", 197e12), ("TPU v5p", 459e12), ("NVIDIA H200", 989e12)])
def test_share_of_the_published_peak(kind, peak):
    devices = [types.SimpleNamespace(device_kind=kind)] * 2
    assert mfu(peak, 1.0, devices=devices) == pytest.approx(0.5)


def test_a_peak_can_be_given_and_is_not_guessed():
    devices = [types.SimpleNamespace(device_kind="cpu")]
    assert mfu(1e12, 1.0, devices=devices) is None
    assert mfu(1e12, 1.0, devices=devices, peak_tflops=4.0) == pytest.approx(0.25)
