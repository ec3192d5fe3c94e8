"""Checkpoints: one unit of truth per step, verified by hash, with fallback to the step before a damaged one."""

from sage_jax.checkpoints.checkpointer import Checkpointer, CheckpointWarning, Restored
from sage_jax.checkpoints.manifest import Manifest, read_manifest

__all__ = ["CheckpointWarning", "Checkpointer", "Manifest", "Restored", "read_manifest"]
