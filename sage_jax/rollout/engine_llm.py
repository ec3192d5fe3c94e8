"""A task LLM on an engine of this project, in this process: its weights are never updated."""

from __future__ import annotations

import itertools
from typing import Any

from sage_jax.rollout.engine import Engine, GenerateRequest, SamplingParams, require_whole
from sage_jax.rollout.task_llm import Budget, ChatRequest, Reply, Spending


class EngineLlm:
    """Puts messages through the tokenizer's chat template and an engine (`TaskLlm`). Tools are for the prompt to tell.

    Only `generate` and `end_session` of the engine are ever called, so its weights are what they were.
    """

    def __init__(self, engine: Engine, tokenizer: Any, budget: Budget | None = None):
        """Takes an engine that nobody trains, and the tokenizer of its model."""
        self._engine, self._tokenizer, self.spending = engine, tokenizer, Spending(budget)
        self._numbers = itertools.count()

    async def complete(self, request: ChatRequest) -> Reply:
        """Returns one answer (see `TaskLlm.complete`)."""
        self.spending.begin()
        messages = [{"role": m["role"], "content": m["content"]} for m in request.messages]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
        name = f"task-llm/{next(self._numbers)}"
        sampling = SamplingParams(
            max_new_tokens=request.max_tokens,
            temperature=request.temperature,
            stop_token_ids=(self._tokenizer.eos_token_id,),
            seed=request.seed,
        )
        try:
            result = require_whole(await self._engine.generate(GenerateRequest(name, name, ids, sampling)), name)
        finally:
            await self._engine.end_session(name)
        words = self._tokenizer.decode(result.ids, skip_special_tokens=True)
        reply = Reply(words, (), result.finish_reason, len(ids), len(result.ids))
        self.spending.add(reply)
        return reply

    async def close(self) -> None:
        """Closes nothing: the engine belongs to who opened it."""
