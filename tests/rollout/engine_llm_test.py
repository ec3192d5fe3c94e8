"""A frozen model of this project as task LLM: text in, text out, and weights that nothing touches."""

import asyncio
import hashlib

import jax
import numpy as np
import pytest

from sage_jax.errors import BudgetError, EngineError
from sage_jax.models.transformer import init_params
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.engine_llm import EngineLlm
from sage_jax.rollout.programs import EngineConfig
from sage_jax.rollout.task_llm import Budget, ChatRequest
from sage_jax.seeding import jax_key
from sage_jax.testing.engines import ScriptedEngine
from sage_jax.testing.tiny import MODEL

REQUEST = ChatRequest(({"role": "user", "content": "go to shelf 1"},), seed=5, temperature=0.7, max_tokens=4)


def test_text_in_text_out(word_tokenizer):
    engine = ScriptedEngine(word_tokenizer, ["open fridge 1"])
    llm = EngineLlm(engine, word_tokenizer, Budget(calls=2))
    reply = asyncio.run(llm.complete(REQUEST))
    assert (reply.text, reply.finish_reason, reply.completion_tokens) == ("open fridge 1", "stop", 4)
    request = engine.answered[0][0]
    assert word_tokenizer.decode(request.ids) == "<|user|> go to shelf 1 <|end|> <|assistant|>"
    assert (request.sampling.seed, request.sampling.temperature, request.sampling.max_new_tokens) == (5, 0.7, 4)
    assert asyncio.run(llm.complete(REQUEST)).text == "open fridge 1"  # a session of its own
    with pytest.raises(BudgetError):
        asyncio.run(llm.complete(REQUEST))
    assert not engine.sessions
    failing = ScriptedEngine(word_tokenizer, [])
    with pytest.raises(EngineError):
        asyncio.run(EngineLlm(failing, word_tokenizer).complete(REQUEST))
    assert failing.ended


@pytest.mark.slow
def test_weights_are_the_same_before_and_after(word_tokenizer):
    def digest(tree):
        leaves = jax.tree.leaves(jax.device_get(tree))
        return hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)).hexdigest()

    params = init_params(MODEL, jax_key(0, "frozen"))
    before = digest(params)
    engine = EmbeddedEngine(MODEL, params, EngineConfig(num_slots=4, max_length=128))
    llm = EngineLlm(engine, word_tokenizer)

    async def ask():
        return await asyncio.gather(*(llm.complete(REQUEST) for _ in range(6)))

    replies = asyncio.run(ask())
    assert len({reply.text for reply in replies}) == 1  # one seed, one answer
    assert digest(params) == before
    engine.close()
