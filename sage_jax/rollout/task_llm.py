"""What a task LLM is: messages in, text or tool calls out. Frozen, and as black a box as a vendor's API.

Nothing of it is trained and nothing but text comes back: no token ids, no log-probabilities, no weights. Behind the
protocol stand an OpenAI-compatible endpoint (openai_llm.py) and an engine of this project with weights that never
change (engine_llm.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sage_jax.errors import BudgetError, ConfigError, DataError

Message = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RawToolCall:
    """A tool call as the model wrote it: `arguments` is text that ought to be JSON."""

    id: str
    name: str
    arguments: str


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer.

    Attributes:
      text: what the model wrote beside tool calls; "" for nothing.
      tool_calls: in the model's order.
      finish_reason: "stop", "length", "tool_calls", or what else the endpoint says.
      prompt_tokens, completion_tokens: as the endpoint counts them.
      cost: money, in the unit of the configured prices.
      cached: the answer was kept from an earlier call; it cost nothing now.
    """

    text: str
    tool_calls: tuple[RawToolCall, ...] = ()
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    cached: bool = False


@dataclasses.dataclass(frozen=True)
class ChatRequest:
    """One question to a task LLM.

    Attributes:
      messages: in OpenAI's format.
      tools: specifications in OpenAI's format; empty offers none.
      seed: tells repeated questions apart, and is passed on to endpoints that take one.
      temperature: of sampling.
      max_tokens: of the answer.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    seed: int = 0
    temperature: float = 1.0
    max_tokens: int = 1024

    def key(self, model: str) -> str:
        """Returns a hash of everything the answer may depend on."""
        content = json.dumps([model, dataclasses.asdict(self)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


class TaskLlm(Protocol):
    """Answers questions, many at a time. Every failure is an EngineError."""

    async def complete(self, request: ChatRequest) -> Reply:
        """Returns one answer.

        Raises:
          BudgetError: the budget is used up.
          ServerUnavailableError, ServerRefusedError, ServerProtocolError: what the endpoint did.
        """

    async def close(self) -> None:
        """Closes connections. May be called twice."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a run may spend on its task LLM; 0 is no limit. Raises ConfigError naming the field.

    Attributes:
      calls: questions, cached answers not counted.
      tokens: prompt and completion tokens together.
      money: in the unit of the prices.
    """

    calls: int = 0
    tokens: int = 0
    money: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 0:
                raise ConfigError(f"budget.{field.name}={getattr(self, field.name)} must be 0 (no limit) or more")


class Spending:
    """Counts what was spent, and refuses to go on past the budget. Questions under way may overshoot it."""

    def __init__(self, budget: Budget | None = None):
        """Starts at nothing."""
        self.budget = budget or Budget()
        self.calls = self.tokens = self.cached = 0
        self.money = 0.0

    def check(self) -> None:
        """Raises BudgetError when a limit is reached."""
        for name in ("calls", "tokens", "money"):
            limit, spent = getattr(self.budget, name), getattr(self, name)
            if limit and spent >= limit:
                raise BudgetError(f"the task LLM's budget is used up: {spent:g} {name} of {limit:g}; raise task_{name}")

    def begin(self) -> None:
        """Counts a question that is about to be asked."""
        self.check()
        self.calls += 1

    def add(self, reply: Reply) -> None:
        """Counts an answer."""
        if reply.cached:
            self.cached += 1
        else:
            self.tokens += reply.prompt_tokens + reply.completion_tokens
            self.money += reply.cost


class ReplyCache:
    """Answers by the content of their questions, one file each, shared by runs and processes."""

    def __init__(self, folder: str | os.PathLike[str]):
        """Uses a folder, made when the first answer is kept."""
        self._folder = pathlib.Path(folder)

    def get(self, key: str) -> Reply | None:
        """Returns the answer kept under a key. Raises DataError for a damaged file."""
        path = self._path(key)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            calls = tuple(RawToolCall(**call) for call in data.pop("tool_calls"))
            return Reply(**data, tool_calls=calls, cached=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: is no cached answer ({error}); delete it") from error

    def put(self, key: str, reply: Reply) -> None:
        """Keeps an answer; a file is there whole or not at all."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = dataclasses.asdict(dataclasses.replace(reply, cached=False))
        del data["cached"]
        staging = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        staging.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8", errors="replace")
        staging.replace(path)

    def _path(self, key: str) -> pathlib.Path:
        return self._folder / key[:2] / f"{key}.json"


class CallLog:
    """Every question and its answer as a JSON line; secrets are blotted out before anything is written."""

    def __init__(self, path: str | os.PathLike[str] | None, redact: Redactor):
        """Appends to a file; None keeps no log."""
        self._path = pathlib.Path(path) if path else None
        self._redact, self._lock = redact, threading.Lock()

    def write(self, **entry: Any) -> None:
        """Writes one line."""
        if self._path is not None:
            line = self._redact(json.dumps(entry, ensure_ascii=False, default=str))
            with self._lock:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8", errors="replace") as file:
                    file.write(line + "\n")


class Redactor:
    """Blots a secret out of texts, whoever put it there: a server's error message, a page, a model."""

    def __init__(self, secret: str = ""):
        """Takes the secret; an empty one blots out nothing."""
        # As it is, and as it looks inside JSON.
        self._forms = tuple({secret, json.dumps(secret)[1:-1]}) if secret else ()

    def __call__(self, text: str) -> str:
        """Returns the text without the secret."""
        for form in self._forms:
            text = text.replace(form, "[secret]")
        return text

    def __repr__(self) -> str:
        """Tells nothing."""
        return f"Redactor({len(self._forms)} forms)"


def as_text(messages: Sequence[Message]) -> str:
    """Returns messages as one text, for people and for models without a chat template."""
    return "\n\n".join(f"{message['role']}: {message.get('content') or ''}" for message in messages)
