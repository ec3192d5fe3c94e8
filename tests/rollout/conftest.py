"""A small embedded engine, its fixtures, and turns whose ids and seeds follow from a number."""

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.models import ModelConfig, forward, head_weights, init_params
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.programs import EngineConfig

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
