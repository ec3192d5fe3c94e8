"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from its GGUF file: convert.py GGUF FOLDER.

Needs the package gguf beside ours (get.sh installs it aside). The 4-bit blocks are expanded to what they stand for and
stored in bfloat16, the dtype of the released model.
"""

from __future__ import annotations

import hashlib
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers
import transformers
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from tokenizers import decoders, models, pre_tokenizers

from sage_jax.models import ModelConfig, hf, preset
from sage_jax.models.hf_config import to_hf
from sage_jax.models.hf_store import write_json

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL = preset("smollm2-135m-instruct")

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SIZES: dict[str, Callable[[ModelConfig], Any]] = {
    "embedding_length": lambda model: model.hidden_size,
    "feed_forward_length": lambda model: model.intermediate_size,
    "block_count": lambda model: model.num_layers,
    "attention.head_count": lambda model: model.num_heads,
    "attention.head_count_kv": lambda model: model.num_kv_heads,
    "context_length": lambda model: model.max_position,
    "rope.freq_base": lambda model: model.rope_theta,
}


def main(source: str, folder: str) -> None:
    """Checks the file, converts it, and loads the result once."""
    digest = hashlib.sha256(pathlib.Path(source).read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(f"{source}: sha256 is {digest}, not {SHA256}: another file than the one this was written for")
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    check_sizes(fields, MODEL)
    tensors = {name: value.astype(ml_dtypes.bfloat16) for name, value in convert(reader.tensors, MODEL)}
    safetensors.numpy.save_file(tensors, out / "model.safetensors", {"format": "pt"})
    tokenizer = make_tokenizer(fields)
    tokenizer.save_pretrained(out)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ends["pad_token_id"] = tokenizer.pad_token_id
    write_json(out / "generation_config.json", ends)
    write_json(out / "config.json", to_hf(MODEL, "bfloat16", ends))
    hf.load(out)


def check_sizes(fields: dict[str, Any], model: ModelConfig) -> None:
    """Raises ValueError when the file says other sizes than the model has."""
    for name, size in _SIZES.items():
        if fields[f"llama.{name}"] != size(model):
            raise ValueError(f"llama.{name} is {fields[f'llama.{name}']}; {size(model)} is expected")


def convert(tensors: Iterable[Any], model: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Gives (Hugging Face name, float32 array) of each tensor of the file."""
    for tensor in tensors:
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind, *rest = tensor.name.split(".")
        if kind in _TOP:
            yield f"{_TOP[kind]}.weight", value
            continue
        layer, part, _ = rest
        if part in ("attn_q", "attn_k"):
            value = pair_halves(value, model.num_heads if part == "attn_q" else model.num_kv_heads)
        yield f"model.layers.{layer}.{_LAYER[part]}.weight", value


def pair_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Orders the rows of a head [first half, second half], as rotary embeddings pair them in a Hugging Face model.

    The file pairs neighbours: rows 2i and 2i + 1 of a head turn together there, i and K/2 + i here.

    Args:
      weight: [heads * K, in].
      heads: H.
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def make_tokenizer(fields: dict[str, Any]) -> transformers.PreTrainedTokenizerFast:
    """Builds the tokenizer: byte-level BPE in which every digit stands alone."""
    words = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    # Digits comes first: readers of this file that leave it out split runs of spaces before a digit differently.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == TokenType.CONTROL]
    backend.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in special])
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id",
             "unk_token": "unknown_token_id"}  # fmt: skip
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=MODEL.max_position,
        clean_up_tokenization_spaces=False,
        **{name: words[fields[f"tokenizer.ggml.{key}"]] for name, key in named.items()},
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
