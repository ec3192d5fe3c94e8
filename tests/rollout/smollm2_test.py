"""The embedded engine on SmolLM2-135M-Instruct beside transformers: the same text, greedily, in float32."""

import asyncio
import contextlib
import pathlib

import pytest

from sage_jax.data.tokenizer import load_tokenizer
from sage_jax.models import hf
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.programs import EngineConfig

FOLDER = pathlib.Path(__file__).parents[2] / "models/SmolLM2-135M-Instruct"
NEW, END = 64, 2
PROMPTS = (
    "What is the capital of France?",
    "Name the three primary colors.",
    "Write a haiku about the sea.",
    "What is 12 + 30?",
    "Explain in one sentence why the sky is blue.",
    "Translate 'good morning' into Spanish.",
    "List five animals that live in the forest.",
    "How do I boil an egg?",
    "Who wrote Romeo and Juliet?",
    "Give me a Python function that adds two numbers.",
    "What does a thermometer measure?",
    "Tell me a short story about a lost key.",
    "You are in a kitchen. You see a fridge 1, a sink 1 and a table 1. Your task is to put a clean mug on the table.",
    "Summarise: the cat sat on the mat because the mat was warm and the floor was cold.",
    "What comes after Tuesday?",
    "Which is larger, 9 or 11?",
    "Describe an apple to someone who has never seen one.",
    "Why do leaves fall in autumn?",
    "Convert 5 kilometres to metres.",
    "Say hello in four languages.",
)


@pytest.fixture(scope="module")
def prompts():
    """Token ids of the chats that hold one question each."""
    tokenizer = load_tokenizer(FOLDER)
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    return [tuple(tokenizer.encode(text)) for text in texts]


def generate_with_transformers(prompts):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    longest = max(map(len, prompts))
    ids = torch.tensor([(END,) * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([(0,) * (longest - len(prompt)) + (1,) * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        whole = model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, eos_token_id=END, pad_token_id=END
        )
    answers = (tuple(row) for row in whole[:, longest:].tolist())
    return [row[: row.index(END) + 1] if END in row else row for row in answers]


def generate_with_ours(prompts):
    model, params = hf.load(FOLDER)
    sampling = SamplingParams(NEW, temperature=0.0, stop_token_ids=(END,))

    async def ask(engine):
        turns = (GenerateRequest(f"r{n}", f"s{n}", ids, sampling) for n, ids in enumerate(prompts))
        return await asyncio.gather(*map(engine.generate, turns))

    sizes = EngineConfig.for_model(model, 24, 256)
    with contextlib.closing(EmbeddedEngine(model, params, sizes)) as engine:
        return [result.ids for result in asyncio.run(ask(engine))]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (FOLDER / "config.json").is_file(), reason=f"needs {FOLDER}: run third_party/smollm2/get.sh")
def test_greedy_text_is_that_of_transformers(prompts):
    ours, theirs = generate_with_ours(prompts), generate_with_transformers(prompts)
    assert sum(map(len, theirs)) > 20 * 25  # answers, not bare ends of text
    assert ours == theirs
    assert "Paris" in load_tokenizer(FOLDER).decode(ours[0])
