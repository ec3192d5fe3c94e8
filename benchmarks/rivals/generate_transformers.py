"""transformers' generate, which TRL calls too, on the workload; run by benchmarks/rollout.py."""

from __future__ import annotations

import generation_work as turns
import workload as work

args = turns.arguments(__doc__)

import torch  # noqa: E402
import transformers  # noqa: E402
from model_transformers import make_model  # noqa: E402

MODEL = make_model(0).eval()


@torch.no_grad()
def generate(contexts: list[list[int]], new: int, seed: int) -> list[list[int]]:
    """Samples; all contexts have one length, so that none is padded."""
    ids = torch.tensor(contexts)
    out = MODEL.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
    )
    return out[:, ids.shape[1] :].tolist()


if __name__ == "__main__":
    work.print_result("transformers", transformers.__version__, **turns.measure(args, generate))
