"""An LLM that judges answers which do not match the reference word for word (WebWalkerQA's own way of scoring)."""

from __future__ import annotations

from sage_jax.envs.webwalker.scoring import judge_messages, read_verdict
from sage_jax.errors import ServerProtocolError
from sage_jax.rollout.task_llm import ChatRequest, TaskLlm
from sage_jax.types import Task

_MOST_ANSWER = 2000


async def judge_answer(llm: TaskLlm, task: Task, answer: str) -> bool:
    """Returns whether an answer states what the reference does. An empty one does not, and is not asked about.

    Args:
      llm: the judge; asked at temperature 0.
      task: its payload holds question and answer.
      answer: what the agent gave.

    Raises:
      ServerProtocolError: the judge said neither correct nor incorrect.
      EngineError: it could not be asked.
    """
    if not answer.strip():
        return False
    messages = judge_messages(task.payload["question"], task.payload["answer"], answer[:_MOST_ANSWER])
    reply = await llm.complete(ChatRequest(tuple(messages), temperature=0.0, max_tokens=16))
    verdict = read_verdict(reply.text)
    if verdict is None:
        raise ServerProtocolError(f"the judge said neither correct nor incorrect but {reply.text[:80]!r}")
    return verdict
