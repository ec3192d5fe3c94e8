"""google-tunix' in-process sampler on the workload; run by benchmarks/rollout.py with an interpreter that has it."""

from __future__ import annotations

import importlib.metadata

import generation_work as work

args = work.arguments(__doc__)

import jax  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.generate import sampler  # noqa: E402
from tunix.models.qwen2 import model as qwen2  # noqa: E402


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


def make_model() -> qwen2.Qwen2:
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
    model = qwen2.Qwen2(config, rngs=nnx.Rngs(0))
    leaves, structure = jax.tree.flatten(nnx.state(model))
    keys = jax.random.split(jax.random.key(0), len(leaves))
    drawn = [
        0.02 * jax.random.normal(key, leaf.shape, leaf.dtype) if leaf.ndim > 1 else leaf
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    nnx.update(model, jax.tree.unflatten(structure, drawn))
    return model


def make_sampler(tokens: int) -> sampler.Sampler:
    """Returns a sampler whose cache holds `tokens` tokens of a sequence."""
    cache = sampler.CacheConfig(
        cache_size=tokens, num_layers=work.LAYERS, num_kv_heads=work.KV_HEADS, head_dim=work.HEAD_DIM
    )
    return sampler.Sampler(MODEL, WordTokenizer(), cache)


MODEL = make_model()
SAMPLERS: dict[int, sampler.Sampler] = {}


def generate(contexts: list[list[int]], new: int, seed: int) -> list[list[int]]:
    """Samples with the smallest cache that fits; prompts are padded to a power of two, as Tunix does by itself."""
    padded = 1 << max(len(ids) for ids in contexts).bit_length()  # one more token than given: BOS
    chosen = SAMPLERS.setdefault(padded, make_sampler(padded + work.NEW + 8))
    texts = [WordTokenizer().decode(ids) for ids in contexts]
    # No token ends an answer; the log-probs are what a trainer needs from a sampler.
    out = chosen(
        texts,
        max_generation_steps=new,
        max_prompt_length=padded,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        seed=seed,
        eos_tokens=[work.VOCAB + 1],
        return_logprobs=True,
    )
    return [list(map(int, tokens)) for tokens in out.tokens]


if __name__ == "__main__":
    work.report("tunix", importlib.metadata.version("google-tunix"), work.measure(args, generate, compiled=True))
