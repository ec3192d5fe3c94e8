"""A task LLM for the local scale: a program that does what the words of a skill say, and not always.

It is no language model. It stands where a frozen LLM stands, behind the same protocol, and knows nothing but the
messages it is sent. It obeys the steps that it finds in the skill, overlooks each with some probability anew in every
turn, and without a step does not do what the step is for. So a skill decides what it solves, and an editor can be
trained in minutes on a CPU. What the steps mean is for each benchmark's own follower to say: site_follower.py,
file_follower.py.
"""

from __future__ import annotations

import abc
import random
import re
from collections.abc import Sequence

from sage_jax.rollout.task_llm import Budget, ChatRequest, Reply, Spending
from sage_jax.seeding import derive_seed

GIVE_UP = "FINAL ANSWER: unknown"
_CALL = re.compile(r"Action Input: (.*)")
_QUESTION = re.compile(r"^Question: (?P<text>.+)$", re.M)


class FollowerLlm(abc.ABC):
    """Follows skills (`TaskLlm`); its kinds say how.

    Attributes:
      known: the steps it knows.
    """

    known: tuple[str, ...] = ()

    def __init__(self, *, slip: float = 0.05, budget: Budget | None = None):
        """Makes a follower that overlooks each step of a skill with probability `slip`, anew in every turn."""
        self._slip, self.spending = slip, Spending(budget)

    async def complete(self, request: ChatRequest) -> Reply:
        """Returns the next action, or the answer (see `TaskLlm.complete`)."""
        self.spending.begin()
        system, *talk = (str(message["content"]) for message in request.messages)
        observations, turns = talk[0::2], talk[1::2]
        steps = self._obeyed(system.rpartition("\nWhen: ")[2], request.seed)
        calls = [_CALL.search(turn)[1] for turn in turns]
        text = self.next(_QUESTION.search(observations[0])["text"], observations, calls, steps)
        tokens = sum(len(str(message["content"]).split()) for message in request.messages)
        reply = Reply(text, prompt_tokens=tokens, completion_tokens=len(text.split()))
        self.spending.add(reply)
        return reply

    async def close(self) -> None:
        """Holds nothing that needs closing."""
        return

    @abc.abstractmethod
    def next(self, question: str, observations: Sequence[str], calls: Sequence[str], steps: set[str]) -> str:
        """Returns the next action or the answer.

        Args:
          question: as asked.
          observations: the first holds the question; then one for each call.
          calls: arguments of the calls made.
          steps: obeyed in this turn.
        """

    def _obeyed(self, skill: str, seed: int) -> set[str]:
        """Returns the steps of the skill that are obeyed in this turn."""
        words, rng = " ".join(skill.lower().split()), random.Random(derive_seed(seed, "follower"))
        return {step for step in self.known if rng.random() >= self._slip and step in words}


def action(tool: str, argument: str) -> str:
    """Returns a turn that calls a tool."""
    return f"Thought: look further.\nAction: {tool}\nAction Input: {argument}"
