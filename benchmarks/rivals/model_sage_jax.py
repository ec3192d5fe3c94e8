"""The workload's model here; to be imported after the process was pinned (workload.one_core)."""

import workload as work

from sage_jax.models import ModelConfig

MODEL = ModelConfig(
    vocab_size=work.VOCAB,
    hidden_size=work.WIDTH,
    intermediate_size=work.FFN,
    num_layers=work.LAYERS,
    num_heads=work.HEADS,
    num_kv_heads=work.KV_HEADS,
    head_dim=work.HEAD_DIM,
    rope_theta=work.ROPE_THETA,
    rms_eps=work.RMS_EPS,
    qkv_bias=True,
    tie_embeddings=True,
    max_position=4096,
)
