"""Runs updates on several meshes and keeps what they give; mesh_test.py starts it in processes of its own.

python tests/training/mesh_worker.py FOLDER MESHES [PROCESS PROCESSES PORT], meshes joined by ";", "none" for one device

"adapters MESH" trains adapters on sequences that share prefixes.
"""

import contextlib
import dataclasses
import functools
import pathlib
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

from sage_jax.checkpoints import Checkpointer
from sage_jax.data.packing import Sequence, micro_batches, pack
from sage_jax.data.prefixes import pack_shared
from sage_jax.models import abstract_params, forward, head_weights, hf, logical_axes
from sage_jax.models.config import LoraConfig
from sage_jax.models.hf_store import TensorFolder
from sage_jax.models.lora import init_adapters, split
from sage_jax.models.sharding import make_mesh, param_shardings, parse_mesh, token_shards
from sage_jax.training.batches import place_batch
from sage_jax.training.optimizer import OptimizerOptions, make_optimizer
from sage_jax.training.state import TrainState, state_layout
from sage_jax.training.step import LossOptions, make_logprob_fn, make_update_step, read_metrics

ROWS, LENGTH, UPDATES = 8, 16, 3
# An epsilon well above the rounding of gradients: at 1e-8 Adam makes a full step of a last-bit change of a tiny one.
OPTIMIZER = make_optimizer(OptimizerOptions(learning_rate=1e-2, eps=1e-4))
LOSS = LossOptions(aggregation="sequence_mean", kl_coef=0.1, entropy_coef=0.01, importance_cap=2.0, temperature=0.7)


def batch():
    """Returns rows of one to three sequences, more than one micro-batch of them."""
    rng = np.random.default_rng(0)
    sequences = []
    for number, length in enumerate(rng.integers(4, LENGTH + 1, 18)):
        mask = (rng.random(length) < 0.6).astype(np.float32)
        mask[0] = 0
        ids, advantages = rng.integers(0, 128, length), rng.normal(size=length)
        sequences.append(Sequence(ids, mask, advantages, -rng.uniform(1, 5, length), number))
    return pack(sequences, row_length=LENGTH)


def tree_batch():
    """Returns rows of trees: three tokens, and behind them the rest of the sequences that begin with them."""
    rng = np.random.default_rng(1)
    sequences = []
    for number, length in enumerate(rng.integers(6, 9, 24)):
        mask = np.concatenate([np.zeros(4), np.ones(length - 4)]).astype(np.float32)
        ids = np.concatenate([np.full(3, number // 2), rng.integers(0, 128, length - 3)])
        sequences.append(Sequence(ids, mask, rng.normal(size=length), -rng.uniform(1, 5, length), number))
    packed = pack_shared(sequences, row_length=LENGTH)
    assert (packed.segment_ids > 0).sum() < sum(len(sequence.ids) for sequence in sequences)
    return packed


def updates(folder, text):
    """Returns {path: array} of the state and the metrics of every update."""
    adapted, sizes = text.startswith("adapters "), text.removeprefix("adapters ")
    mesh = None if sizes == "none" else make_mesh(**{"data": 1, **parse_mesh(sizes)})
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        model = hf.read_config(folder / "model")
        shardings = None if mesh is None else param_shardings(logical_axes(model), abstract_params(model), mesh)
        _, params = hf.load(folder / "model", shardings=shardings)
        frozen = None
        if adapted:
            model, frozen = dataclasses.replace(model, lora=LoraConfig(2, targets=("q", "o", "down"))), params
            params = adapters(model, mesh)
        rows = tree_batch() if adapted else batch()
        micro = place_batch(micro_batches(rows, ROWS, capacity_multiple=8, shards=token_shards()))
        run, layout = functools.partial(forward, model, remat="full"), state_layout(params, OPTIMIZER)
        update = make_update_step(run, head_weights, OPTIMIZER, LOSS, frozen=frozen, layout=layout)
        logprobs = make_logprob_fn(run, head_weights, LOSS, frozen=frozen)
        micro = micro._replace(old_logprobs=logprobs(params, micro))
        state = TrainState.create(params, OPTIMIZER)
        lies = [leaf.sharding for leaf in jax.tree.leaves(state)]
        found = {}
        for number in range(UPDATES):
            state, metrics = update(state, micro, params)
            for name, value in read_metrics(metrics, state.params, step=number).items():
                found[f"{number} {name}"] = np.float64(value)
        assert [leaf.sharding for leaf in jax.tree.leaves(state)] == lies
        with Checkpointer(folder / f"checkpoints {text}") as checkpointer:
            checkpointer.save(UPDATES, {"state": state}, {"mesh": text})
        if not adapted:
            hf.save(folder / f"export {text}", model, state.params, dtype="float32")
        for path, leaf in jax.tree.leaves_with_path(state):
            whole = leaf if leaf.is_fully_addressable else multihost_utils.process_allgather(leaf, tiled=True)
            found[jax.tree_util.keystr(path)] = np.asarray(whole)
        return found


def adapters(model, mesh):
    """Returns fresh adapters on the mesh, as a session places them."""
    fresh = init_adapters(model, jax.random.key(1))
    if mesh is None:
        return fresh
    return jax.device_put(fresh, split(param_shardings(logical_axes(model), abstract_params(model), mesh))[0])


def watch_reads():
    """Returns a list that receives the bytes of every read of a model file."""
    sizes, read = [], TensorFolder.read

    def counted(*args):
        part = read(*args)
        sizes.append(part.nbytes)
        return part

    TensorFolder.read = counted
    return sizes


def main(folder, meshes, process=0, processes=1, port=0):
    """Writes FOLDER/<mesh>.npz for every mesh; of several processes the first one writes."""
    if int(processes) > 1:
        jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    sizes = watch_reads()
    for text in meshes.split(";"):
        sizes.clear()
        found = updates(pathlib.Path(folder), text)
        if jax.process_index() == 0:
            np.savez(pathlib.Path(folder) / f"{text}.npz", read=sum(sizes), largest_read=max(sizes), **found)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
