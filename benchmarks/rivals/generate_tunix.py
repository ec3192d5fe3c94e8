"""google-tunix' in-process sampler on the workload; run by benchmarks/rollout.py with an interpreter that has it."""

from __future__ import annotations

import functools
import importlib.metadata

import generation_work as turns
import workload as work

args = turns.arguments(__doc__)

from model_tunix import WordTokenizer, make_model  # noqa: E402
from tunix.generate import sampler  # noqa: E402


@functools.cache
def make_sampler(tokens: int) -> sampler.Sampler:
    """Returns the sampler whose cache holds `tokens` tokens of a sequence."""
    cache = sampler.CacheConfig(
        cache_size=tokens, num_layers=work.LAYERS, num_kv_heads=work.KV_HEADS, head_dim=work.HEAD_DIM
    )
    return sampler.Sampler(MODEL, WordTokenizer(), cache)


MODEL = make_model(0)


def generate(contexts: list[list[int]], new: int, seed: int) -> list[list[int]]:
    """Samples with the smallest cache that fits; prompts are padded to a power of two, as Tunix does by itself."""
    padded = 1 << max(len(ids) for ids in contexts).bit_length()  # one more token than given: BOS
    chosen = make_sampler(padded + turns.NEW + 8)
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


def warm_up() -> None:
    """Compiles by generating once in every shape that will come: Tunix has one for each batch and padded prompt."""
    turn = turns.OBSERVATION + turns.ANSWER
    shapes = {
        (args.episodes, 1 << (n * turn + turns.OBSERVATION).bit_length(), turns.ANSWER) for n in range(args.turns)
    }
    shapes |= {(int(batch), 1 << turns.PROMPT.bit_length(), turns.NEW) for batch in args.batches.split(",") if batch}
    for batch, padded, new in sorted(shapes):
        generate([turns.words(0, count=padded - 2)] * batch, new, 0)


if __name__ == "__main__":
    warm_up()
    work.print_result("tunix", importlib.metadata.version("google-tunix"), **turns.measure(args, generate))
