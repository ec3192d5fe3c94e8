"""Writes a small random Llama as a Hugging Face folder, for the conformance suite: make_model.py FOLDER."""

import sys

import jax

from sage_jax.models import ModelConfig, hf, init_params

MODEL = ModelConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    tie_embeddings=True,
    max_position=512,
)


def main(folder: str) -> None:
    """Draws weights large enough that the next-token distribution is far from uniform, and writes them."""
    params = init_params(MODEL, jax.random.key(0))
    params = jax.tree.map(lambda leaf: leaf * 4 if leaf.ndim > 1 else leaf, params)
    hf.save(folder, MODEL, params, dtype="float32")


if __name__ == "__main__":
    main(sys.argv[1])
