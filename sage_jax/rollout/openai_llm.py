"""A task LLM behind an OpenAI-compatible endpoint: vLLM, SGLang, this project's own server, or a vendor.

The openai client does the talking and the retries (it waits as long as Retry-After asks for). The key is read from an
environment variable when a connection is opened, lives in that client alone, and is blotted out of every text that
comes back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import httpx
import openai

from sage_jax.errors import (
    ConfigError,
    EngineError,
    ServerProtocolError,
    ServerRefusedError,
    ServerUnavailableError,
)
from sage_jax.rollout.http_client import check_url, read_key
from sage_jax.rollout.task_llm import Budget, CallLog, ChatRequest, RawToolCall, Redactor, Reply, ReplyCache, Spending

_NO_KEY = "none"  # the client insists on one; servers without authentication ignore it


@dataclasses.dataclass(frozen=True)
class OpenAiOptions:
    """How the endpoint is called. Raises ConfigError naming the field.

    Attributes:
      url: base address, ".../v1".
      model: name of the model there.
      key_env: environment variable that holds the key; empty sends none. The key itself is never a setting.
      timeout_s: longest time of one attempt.
      retries: further attempts after a refused connection, a timeout, 408, 409, 429 or 5xx.
      concurrency: questions under way at one time.
      price_in, price_out: money for a million prompt and completion tokens.
      cache: folder of kept answers; empty keeps none.
      log: file of all questions and answers; empty writes none.
      pass_seed: send `seed` along; some vendors refuse it.
      use_proxy: obey the machine's proxy settings.
    """

    url: str
    model: str
    key_env: str = ""
    timeout_s: float = 120.0
    retries: int = 6
    concurrency: int = 16
    price_in: float = 0.0
    price_out: float = 0.0
    cache: str = ""
    log: str = ""
    pass_seed: bool = True
    use_proxy: bool = False

    def __post_init__(self) -> None:
        check_url("task_url", self.url, "task_key_env")
        if not self.model:
            raise ConfigError("task_model is empty: name the model that the endpoint serves")
        for name in ("timeout_s", "concurrency"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"task {name}={getattr(self, name)} must be above 0")
        for name in ("retries", "price_in", "price_out"):
            if getattr(self, name) < 0:
                raise ConfigError(f"task {name}={getattr(self, name)} must be 0 or more")


class OpenAiLlm:
    """The task LLM of an endpoint (`TaskLlm`)."""

    def __init__(self, options: OpenAiOptions, budget: Budget | None = None):
        """Opens no connection yet.

        Raises:
          ConfigError: `key_env` names no environment variable.
        """
        self.options, self.spending = options, Spending(budget)
        self._redact = Redactor(read_key("task_key_env", options.key_env) if options.key_env else "")
        self._cache = ReplyCache(options.cache) if options.cache else None
        self._log = CallLog(options.log, self._redact)
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def complete(self, request: ChatRequest) -> Reply:
        """Returns one answer (see `TaskLlm.complete`)."""
        key = request.key(f"{self.options.url} {self.options.model}")
        reply = self._cache.get(key) if self._cache else None
        if reply is None:
            async with self._gate_of_this_loop():
                reply = await self._ask(request, key)
            if self._cache:
                self._cache.put(key, reply)
        self.spending.add(reply)
        return reply

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
        self._client = None

    def _gate_of_this_loop(self) -> asyncio.Semaphore:
        """Opens connections for the running loop: those of an earlier loop cannot be used from it."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            options = self.options
            self._client = openai.AsyncOpenAI(
                base_url=options.url,
                api_key=read_key("task_key_env", options.key_env) if options.key_env else _NO_KEY,
                organization=None,
                max_retries=options.retries,
                timeout=options.timeout_s,
                http_client=httpx.AsyncClient(trust_env=options.use_proxy, timeout=options.timeout_s),
            )
            self._loop, self._gate = loop, asyncio.Semaphore(options.concurrency)
        return self._gate

    async def _ask(self, request: ChatRequest, key: str) -> Reply:
        """Asks the endpoint and logs the question with its answer or its failure."""
        self.spending.begin()
        start, outcome, reply = time.monotonic(), "cancelled", None
        try:
            answer = await self._client.chat.completions.create(**self._body(request))
            reply, outcome = self._read(answer), "ok"
            return reply
        except (ValueError, RecursionError) as error:  # the client lets an answer that is not JSON through as these
            outcome = f"no JSON: {type(error).__name__}"
            raise ServerProtocolError(f"{self.options.url}: the answer is not JSON") from None
        except openai.OpenAIError as error:
            typed = _typed(error, self._redact)
            outcome = f"{type(typed).__name__}: {typed}"
            raise typed from None  # the client's own error holds the request, and with it the key
        except EngineError as error:
            outcome = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._log.write(
                key=key,
                model=self.options.model,
                request=dataclasses.asdict(request),
                reply=None if reply is None else dataclasses.asdict(reply),
                outcome=outcome,
                seconds=round(time.monotonic() - start, 3),
            )

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.options.model,
            "messages": list(request.messages),
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
        }
        if self.options.pass_seed:
            body["seed"] = request.seed % 2**31
        return body | ({"tools": list(request.tools)} if request.tools else {})

    def _read(self, answer: Any) -> Reply:
        """Reads an answer; the client does not check what a server sends. Raises ServerProtocolError."""
        try:
            choice = answer.choices[0]
            calls = tuple(
                RawToolCall(str(call.id), str(call.function.name), str(call.function.arguments))
                for call in choice.message.tool_calls or ()
            )
            text = choice.message.content or ""
            usage = answer.usage
            counts = (int(usage.prompt_tokens), int(usage.completion_tokens)) if usage else (0, 0)
            reason = str(choice.finish_reason or "stop")
        except (AttributeError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise ServerProtocolError(f"{self.options.url}: the answer is no chat completion: {error}") from error
        if min(counts) < 0:
            raise ServerProtocolError(f"{self.options.url}: the answer's usage is {counts}; counts are expected")
        if not isinstance(text, str):
            raise ServerProtocolError(f"{self.options.url}: the answer's content is {type(text).__name__}, not text")
        cost = (counts[0] * self.options.price_in + counts[1] * self.options.price_out) / 1e6
        calls = tuple(dataclasses.replace(call, arguments=self._redact(call.arguments)) for call in calls)
        return Reply(self._redact(text), calls, reason, *counts, cost)


def _typed(error: openai.OpenAIError, redact: Redactor) -> EngineError:
    """Returns the error of ours that fits the client's."""
    message = redact(str(error))[:500]
    if isinstance(error, openai.APIResponseValidationError):
        return ServerProtocolError(message)
    if isinstance(error, openai.APIStatusError):
        if error.status_code in (408, 409, 429) or error.status_code >= 500:
            return ServerUnavailableError(message)
        return ServerRefusedError(message)
    if isinstance(error, openai.APIConnectionError):  # timeouts too
        return ServerUnavailableError(message)
    return ServerProtocolError(message)
