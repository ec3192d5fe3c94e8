"""transformers' generate, which TRL calls too, on the workload; run by benchmarks/rollout.py."""

from __future__ import annotations

import generation_work as work

args = work.arguments(__doc__)

import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
CONFIG = transformers.Qwen2Config(
    vocab_size=work.VOCAB,
    hidden_size=work.WIDTH,
    intermediate_size=work.FFN,
    num_hidden_layers=work.LAYERS,
    num_attention_heads=work.HEADS,
    num_key_value_heads=work.KV_HEADS,
    tie_word_embeddings=True,
    rms_norm_eps=work.RMS_EPS,
    max_position_embeddings=4096,
    pad_token_id=work.PAD,
    eos_token_id=work.EOS,
    bos_token_id=work.BOS,
)
MODEL = transformers.Qwen2ForCausalLM(CONFIG).float().eval()


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
    work.report("transformers", transformers.__version__, work.measure(args, generate, compiled=False))
