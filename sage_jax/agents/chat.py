"""Growing-context prompts: the conversation is the context, and each turn appends only what is new.

The texts are compact, because at local scale every prompt token is paid for by a small CPU. Larger models may use the
step-wise prompts of agents/prompts.py instead.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from sage_jax.errors import ConfigError


def opening_message(observation: str, skills: Sequence[tuple[str, str]]) -> str:
    """The first user message: retrieved skills as (title, principle), then the room and the task."""
    lines = [f"skill {title} : {principle} ." for title, principle in skills]
    return "\n".join([*lines, observation])


def review_message(*, family: str, success: bool, steps: int, titles: Sequence[str]) -> str:
    """The user message that opens the review turn after an episode."""
    outcome = "success" if success else "failure"
    shown = " , ".join(titles) or "none"
    return (
        f"review . family {family} . {outcome} in {steps} steps . skills {shown} . "
        "call propose_skill , update_skill or keep_skill ."
    )


def act_text(thought: str, action: str) -> str:
    """How an act turn is written."""
    return f"<think> {thought} </think> <action> {action} </action>"


def review_text(thought: str, call: dict) -> str:
    """How a review turn is written."""
    return f"<think> {thought} </think> <tool_call> {json.dumps(call)} </tool_call>"


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """Token ids around messages, read once from a tokenizer's own chat template.

    Attributes:
      first: (before, after) the first user message, generation prompt included.
      later: (before, after) each later user message; `before` closes the assistant turn up to, not including, its
        stop token, which the engine returned itself.
      stop_ids: ids that end an assistant turn.
    """

    first: tuple[tuple[int, ...], tuple[int, ...]]
    later: tuple[tuple[int, ...], tuple[int, ...]]
    stop_ids: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> ChatTemplate:
        """Reads the template by rendering marked messages.

        Raises:
          ConfigError: no template, or one that does not keep messages verbatim or ends turns in another token than eos.
        """
        if not tokenizer.chat_template:
            raise ConfigError("chat_template: the tokenizer has none; use an instruct model's tokenizer or set one")
        user, reply, then = "MARKUSERONE", "MARKREPLY", "MARKUSERTWO"
        messages = [{"role": "user", "content": user}]
        first = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": then}]
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if first.count(user) != 1 or whole.count(reply) != 1 or whole.count(then) != 1:
            raise ConfigError("chat_template: the tokenizer's template does not keep messages verbatim")
        encode = lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
        between, _, end = whole.partition(reply)[2].partition(then)
        stop = tokenizer.eos_token
        if not between.startswith(stop):
            raise ConfigError(f"chat_template: a turn ends in {between[:20]!r}, not in the eos token {stop!r}")
        before, _, after = first.partition(user)
        return cls(
            first=(encode(before), encode(after)),
            later=(encode(between[len(stop) :]), encode(end)),
            stop_ids=(tokenizer.eos_token_id,),
        )

    def user(self, content_ids: Sequence[int], *, first: bool) -> tuple[int, ...]:
        """Returns the ids to append for a user message: everything up to where the assistant starts to write."""
        before, after = self.first if first else self.later
        return (*before, *content_ids, *after)
