"""A small embedded engine, its fixtures, turns whose ids and seeds follow from a number, and a model that can speak."""

import asyncio
import dataclasses
import functools

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.data.word_tokenizer import ASSISTANT, END, build_tokenizer
from sage_jax.models import ModelConfig, forward, head_weights, hf, init_params
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.programs import EngineConfig
from sage_jax.rollout.server import ServerApp
from sage_jax.rollout.service import EngineService

MODEL = ModelConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    tie_embeddings=True,
    max_position=512,
)
# Blocks and chunks far smaller than the contexts, so that every test crosses their edges; more neighbours than slots.
CONFIG = EngineConfig(num_slots=17, max_length=200, prefill_rows=4, prefill_chunk=8, decode_steps=4, block=32)
SCORED_LENGTH = 208


def draw_params(seed):
    """Random weights, large enough that the next-token distribution is far from uniform."""
    params = init_params(MODEL, jax.random.key(seed))
    return jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, params)


@jax.jit
def _forward_logits(params, ids, segments):
    positions = jnp.arange(SCORED_LENGTH)[None]
    return forward(MODEL, params, ids[None], positions, segments[None])[0] @ head_weights(params).T


def full_logits(params, ids):
    """Logits [T, V] of a whole sequence by the training forward pass."""
    padded, segments = np.zeros(SCORED_LENGTH, np.int32), np.zeros(SCORED_LENGTH, np.int32)
    padded[: len(ids)], segments[: len(ids)] = ids, 1
    return np.asarray(_forward_logits(params, padded, segments))[: len(ids)]


# A model that answers every chat greedily with a tool call, and a template that shows tools.
CALL = '{"name": "find", "arguments": {"text": "lamp"}}'
SPEAKER = dataclasses.replace(MODEL, tie_embeddings=False, num_layers=1, max_position=4096)
SPEAKER_CONFIG = dataclasses.replace(CONFIG, num_slots=4, max_stop_ids=4)
TEMPLATE = (
    "{% if tools %}{{ '<|user|>' + (tools | tojson) + '<|end|>' }}{% endif %}{% for message in messages %}"
    "{{ ('<|user|>' if message['role'] == 'user' else '<|assistant|>') + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}"
    "{% endfor %}{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def save_speaker(folder):
    """Writes the model that says CALL; returns its parameters and its tokenizer."""
    words = ["go", "to", "shelf", "lamp", CALL]
    tokenizer = build_tokenizer(words, MODEL.vocab_size)
    tokenizer.chat_template = TEMPLATE
    params = init_params(SPEAKER, jax.random.key(0))
    for part in (params["layers"]["attn"]["o"], params["layers"]["mlp"]["down"]):
        part["kernel"] = jnp.zeros_like(part["kernel"])  # so that the last token alone decides on the next
    said = tokenizer.convert_tokens_to_ids([ASSISTANT, "<tool_call>", CALL, "</tool_call>", END])
    before, after = jnp.array(said[:-1]), jnp.array(said[1:])
    params["head"] = jnp.zeros_like(params["head"]).at[after].set(params["embed"][before] * 100)
    hf.save(folder, SPEAKER, params, dtype="float32")
    tokenizer.save_pretrained(folder)
    return params, tokenizer


@pytest.fixture(scope="session")
def speaker(tmp_path_factory):
    """Makes services of one warm engine; `served(name=..., limit=...)`."""
    folder = tmp_path_factory.mktemp("speaker")
    params, tokenizer = save_speaker(folder)
    engine = EmbeddedEngine(SPEAKER, params, SPEAKER_CONFIG)
    engine.warmup()
    yield functools.partial(EngineService, engine, folder, tokenizer)
    engine.close()


def call_app(service, *requests, key="", sent=True):
    """Sends (method, path, options) one after the other to the service's application, in this process.

    An error that the application lets out is raised here.
    """

    async def send():
        transport = httpx.ASGITransport(ServerApp(service, api_key=key).build())
        headers = {"Authorization": f"Bearer {key}"} if key and sent else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://app", headers=headers) as client:
            return [await client.request(method, path, **options) for method, path, options in requests]

    return asyncio.run(send())


@pytest.fixture(scope="module")
def params():
    return draw_params(0)


@pytest.fixture(scope="module")
def warm_engine(params):
    engine = EmbeddedEngine(MODEL, params, CONFIG)
    engine.warmup(choices=True)
    yield engine
    engine.close()


@pytest.fixture
def engine(warm_engine, params):
    """The shared engine with nothing cached, at a fresh version of the same weights."""
    warm_engine.update_weights(params, warm_engine.stats()["weight_version"] + 1)
    return warm_engine


@pytest.fixture
def new_engine(params):
    """Makes engines of the same sizes (no new compilation) that are closed after the test."""
    made = []

    def make(weights=params, config=CONFIG):
        made.append(EmbeddedEngine(MODEL, weights, config))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def prompt(number, length):
    return tuple(np.random.default_rng(number).integers(0, MODEL.vocab_size, length).tolist())


def turn(number, *, length=20, session=None, ids=None, **sampling):
    """A request whose ids and seed follow from its number."""
    sampling = {"max_new_tokens": 10, "seed": number} | sampling
    return GenerateRequest(
        f"request-{number}", session or f"session-{number}", ids or prompt(number, length), SamplingParams(**sampling)
    )


def run(engine, *requests):
    """Generates all requests at once."""

    async def gather():
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    return asyncio.run(gather())


def same(first, second):
    """Equal in every bit of what was sampled."""
    pairs = zip(first, second, strict=True)
    return all((a.ids, a.logprobs, a.sampled_logprobs) == (b.ids, b.logprobs, b.sampled_logprobs) for a, b in pairs)
