"""The workload's model in transformers; to be imported after the process was pinned (workload.one_core)."""

import torch
import transformers
import workload as work

torch.set_num_threads(1)


def make_model(seed: int) -> transformers.Qwen2ForCausalLM:
    """Returns a random Qwen2 in float32."""
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
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
    return transformers.Qwen2ForCausalLM(config).float()
