"""An engine that says what a test wants it to say, and tells what it was asked.

It keeps the promises of `rollout.engine.Engine` that agents rely on: token ids in and out, a stop token at the end, a
budget in tokens, a context of limited length, sessions. It needs no weights and imports no jax.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sage_jax.errors import EngineError
from sage_jax.rollout.engine import LENGTH, STOP, GenerateRequest, Generation, VersionSpan

Script = Callable[[GenerateRequest, int], str | Awaitable[str]]


class ScriptedEngine:
    """Answers from a list of texts, or from a function of the request and its turn.

    Attributes:
      answered: (request, generation) of every turn, in the order in which they ended.
      ended: names of the sessions that were ended, in order.
      closed: whether `close` was called.
    """

    def __init__(self, tokenizer: Any, script: Sequence[str] | Script, *, max_length: int = 4096, version: int = 0):
        """Makes an engine.

        Args:
          tokenizer: a Hugging Face tokenizer; its eos token ends every text.
          script: what each session is told, turn by turn; or (request, turn of the session) -> text, or an awaitable
            of one. The function may raise EngineError. A text that is already complete may end in the eos token.
          max_length: most tokens of a context, output included.
          version: weight version to report.
        """
        self._tokenizer, self._script = tokenizer, script
        self._max_length, self._version = max_length, version
        self._contexts: dict[str, tuple[int, ...]] = {}
        self._turns: dict[str, int] = {}
        self._running: set[str] = set()
        self.answered: list[tuple[GenerateRequest, Generation]] = []
        self.ended: list[str] = []
        self.closed = False

    @property
    def sessions(self) -> tuple[str, ...]:
        """Names of the sessions that were begun and not ended."""
        return tuple(self._contexts)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Returns the scripted turn.

        Raises:
          EngineError: the script has no text left or raises it, the text is none of the choices, the session has a
            turn running already, or the engine is closed.
        """
        self.health()
        if request.session in self._running:
            raise EngineError(f"session {request.session!r} has a turn running already")
        self._running.add(request.session)
        try:
            room = min(request.sampling.max_new_tokens, self._max_length - len(request.ids))
            ids = await self._write(request) if room > 0 else ()
        finally:
            self._running.discard(request.session)
        generation = self._generation(request, ids[: max(room, 0)])
        self._contexts[request.session] = (*request.ids, *generation.ids)
        self.answered.append((request, generation))
        return generation

    async def _write(self, request: GenerateRequest) -> tuple[int, ...]:
        """Returns the ids of the whole scripted turn."""
        turn = self._turns.get(request.session, 0)
        self._turns[request.session] = turn + 1
        self._contexts.setdefault(request.session, ())
        if callable(self._script):
            told = self._script(request, turn)
            text = await told if inspect.isawaitable(told) else told
        elif turn < len(self._script):
            text = self._script[turn]
        else:
            raise EngineError(f"session {request.session!r}: the script has no turn {turn}")
        end = self._tokenizer.eos_token
        ids = tuple(self._tokenizer.encode(text.removesuffix(end), add_special_tokens=False))
        ids = (*ids, self._tokenizer.eos_token_id)
        choices = request.sampling.choices
        if choices is not None and ids not in choices:
            raise EngineError(f"session {request.session!r}: {text!r} is none of the {len(choices)} choices")
        return ids

    def _generation(self, request: GenerateRequest, ids: tuple[int, ...]) -> Generation:
        stopped = bool(ids) and ids[-1] in request.sampling.stop_token_ids
        logprobs = tuple(-(1 + token % 16) / 16 for token in ids)  # of no meaning, but different and exact in float32
        return Generation(
            ids=ids,
            logprobs=logprobs,
            sampled_logprobs=None,
            finish_reason=STOP if stopped else LENGTH,
            weight_version=self._version,
            weight_versions=(VersionSpan(self._version, 0, len(ids)),) if ids else (),
            cached_tokens=_common_prefix(self._contexts.get(request.session, ()), request.ids),
            prompt_tokens=len(request.ids),
        )

    async def end_session(self, session: str) -> None:
        """Forgets a session; unknown names are fine."""
        self._contexts.pop(session, None)
        self._turns.pop(session, None)
        self.ended.append(session)

    def update_weights(self, params: Any, version: int) -> None:
        """Takes the version and forgets every context, as an engine with weights must."""
        self._version = version
        self._contexts = dict.fromkeys(self._contexts, ())

    def health(self) -> None:
        """Raises EngineError once the engine is closed."""
        if self.closed:
            raise EngineError("the scripted engine is closed")

    def stats(self) -> Mapping[str, float]:
        """Returns how many turns and tokens were answered."""
        tokens = sum(len(generation.ids) for _, generation in self.answered)
        return {"turns": float(len(self.answered)), "tokens": float(tokens)}

    def close(self) -> None:
        """Stops answering."""
        self.closed = True


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
