"""The conversion of SmolLM2 from its GGUF file, on a small file written here, and on the real folder where it is."""

import importlib.util
import json
import pathlib

import gguf
import numpy as np
import pytest
import safetensors.numpy

from sage_jax.data.tokenizer import load_tokenizer
from sage_jax.models import ModelConfig, hf

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "third_party/smollm2/convert.py"
REAL = ROOT / "models/SmolLM2-135M-Instruct"
MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=1e4,
    tie_embeddings=True,
    max_position=128,
)
NAMES = {
    "attn_norm": ("input_layernorm", (32,)),
    "attn_q": ("self_attn.q_proj", (32, 32)),
    "attn_k": ("self_attn.k_proj", (16, 32)),
    "attn_v": ("self_attn.v_proj", (16, 32)),
    "attn_output": ("self_attn.o_proj", (32, 32)),
    "ffn_norm": ("post_attention_layernorm", (32,)),
    "ffn_gate": ("mlp.gate_proj", (64, 32)),
    "ffn_up": ("mlp.up_proj", (64, 32)),
    "ffn_down": ("mlp.down_proj", (32, 64)),
}


@pytest.fixture(scope="module")
def convert():
    spec = importlib.util.spec_from_file_location("smollm2_convert", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def written(tmp_path):
    """A GGUF file and its arrays; the embedding in 8-bit blocks, as in the real one."""
    rng, path = np.random.default_rng(0), tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(128)
    writer.add_rope_freq_base(1e4)
    arrays = {"token_embd.weight": rng.normal(size=(64, 32)), "output_norm.weight": rng.normal(size=32)}
    arrays |= {f"blk.{i}.{part}.weight": rng.normal(size=NAMES[part][1]) for i in range(2) for part in NAMES}
    arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    for name, value in arrays.items():
        kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, arrays


def rotated(rows, position, *, neighbours):
    """Turns each pair of a head's rows by its angle, in float64 loops (arXiv 2104.09864, equation 34)."""
    out, half = np.empty_like(rows), len(rows) // 2
    for pair in range(half):
        a, b = (2 * pair, 2 * pair + 1) if neighbours else (pair, half + pair)
        angle = position * 1e4 ** (-2 * pair / len(rows))
        out[a] = rows[a] * np.cos(angle) - rows[b] * np.sin(angle)
        out[b] = rows[a] * np.sin(angle) + rows[b] * np.cos(angle)
    return out


def test_attention_scores_stay_the_same(convert):
    rng = np.random.default_rng(1)
    query, key = rng.normal(size=(2, 2, 8, 5))  # 2 heads of 8 rows, width 5
    x, y = rng.normal(size=(2, 5))
    ours = [convert.pair_halves(weight.reshape(16, 5), heads=2).reshape(2, 8, 5) for weight in (query, key)]
    for head in range(2):
        expected = rotated(query[head] @ x, 7, neighbours=True) @ rotated(key[head] @ y, 3, neighbours=True)
        found = rotated(ours[0][head] @ x, 7, neighbours=False) @ rotated(ours[1][head] @ y, 3, neighbours=False)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rows_by_hand(convert):
    weight = np.arange(8.0)[:, None]  # two heads of four rows: pairs (0, 1) (2, 3) become (0, 2) and (1, 3)
    assert convert.pair_halves(weight, heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_every_tensor_arrives_under_its_name(convert, written, tmp_path):
    path, arrays = written
    found = dict(convert.convert(gguf.GGUFReader(path).tensors, MODEL))
    assert len(found) == len(arrays)
    for part, (name, _) in NAMES.items():
        value = arrays[f"blk.1.{part}.weight"]
        if part in ("attn_q", "attn_k"):
            value = convert.pair_halves(value, 4 if part == "attn_q" else 2)
        np.testing.assert_array_equal(found[f"model.layers.1.{name}.weight"], value)
    embed = arrays["token_embd.weight"]  # blocks of 32 share a scale of largest / 127, so steps are that wide
    np.testing.assert_allclose(found["model.embed_tokens.weight"], embed, atol=np.abs(embed).max() / 127 * 0.51)
    safetensors.numpy.save_file(found, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(convert.to_hf(MODEL, "float32")))
    assert hf.load(tmp_path)[0] == MODEL


def test_other_sizes_are_refused(convert, written):
    fields = {name: field.contents() for name, field in gguf.GGUFReader(written[0]).fields.items()}
    convert.check_sizes(fields, MODEL)
    with pytest.raises(ValueError, match=r"llama\.attention\.head_count_kv is 1; 2 is expected"):
        convert.check_sizes(fields | {"llama.attention.head_count_kv": 1}, MODEL)


def test_another_file_is_refused(convert, written, tmp_path):
    with pytest.raises(SystemExit, match="another file than the one"):
        convert.main(str(written[0]), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_tokenizer_keeps_digits_apart_and_special_words_whole(convert):
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "12", "ab", "Ġ1"]
    tokenizer = convert.make_tokenizer({
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(words) - 3),
        "tokenizer.ggml.merges": ["1 2", "a b", "Ġ 1"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    })  # fmt: skip
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab 12<|im_end|>")) == ["ab", "Ġ", "1", "2", "<|im_end|>"]
    for text in ("naïve – 7%", "  two  spaces\n\tand a tab "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "config.json").is_file(), reason=f"needs {REAL.name}: run third_party/smollm2/get.sh")
def test_the_real_tokenizer():
    tokenizer = load_tokenizer(REAL)
    assert len(tokenizer) == hf.read_config(REAL).vocab_size == 49152
    # A run of spaces before a digit is one token; readers that drop the rule of digits leave a space for the digit.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x    3")) == ["x", "ĠĠĠĠ", "3"]
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>")[0] == 1
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n")
