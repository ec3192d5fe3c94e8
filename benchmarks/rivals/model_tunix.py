"""The workload's model and tokenizer in Tunix; to be imported after the process was pinned (workload.one_core)."""

import jax
import workload as work
from flax import nnx
from tunix.models.qwen2 import model as qwen2


class WordTokenizer:
    """Ids written as words "t17", which is all that Tunix asks of a tokenizer here."""

    def encode(self, text, **_):
        """Returns ids."""
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids, **_):
        """Returns text."""
        return " ".join(f"t{int(token)}" for token in ids)

    def bos_id(self):
        """Returns the id that Tunix puts before a prompt."""
        return work.BOS

    def eos_id(self):
        """Returns the end of a text."""
        return work.EOS

    def pad_id(self):
        """Returns padding."""
        return work.PAD


def make_model(seed: int) -> qwen2.Qwen2:
    """Returns a Qwen2 whose matrices are all normal(0, 0.02); Tunix starts some of them at 0."""
    config = qwen2.ModelConfig(
        num_layers=work.LAYERS,
        vocab_size=work.VOCAB,
        embed_dim=work.WIDTH,
        hidden_dim=work.FFN,
        num_heads=work.HEADS,
        head_dim=work.HEAD_DIM,
        num_kv_heads=work.KV_HEADS,
        rope_theta=int(work.ROPE_THETA),
        norm_eps=work.RMS_EPS,
        use_tied_embedding=True,
    )
    model = qwen2.Qwen2(config, rngs=nnx.Rngs(seed))
    leaves, structure = jax.tree.flatten(nnx.state(model))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [
        0.02 * jax.random.normal(key, leaf.shape, leaf.dtype) if leaf.ndim > 1 else leaf
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    nnx.update(model, jax.tree.unflatten(structure, drawn))
    return model
