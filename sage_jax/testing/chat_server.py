"""An OpenAI-compatible endpoint that answers from a script and keeps what it was asked, over real sockets.

    with ChatServer(lambda body: "FINAL ANSWER: 4", key="sk-secret") as server:
        ...                                      # server.url is the base address, server.bodies what was asked

It exposes text and tool calls and nothing else; bytes are sent as the body of the answer. Instead of an answer a script
may give a fault: an HTTP status as a number, "hang", "drop" (the connection), "garbage" (not JSON), "empty" (JSON that
is no completion), "echo_key" (401 that quotes the key, as some vendors do).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("hang", "drop", "garbage", "empty", "echo_key")
# A text; (name, arguments as text) of tool calls; a whole body; a number or a name for a fault.
Answer = str | bytes | int | Sequence[tuple[str, str]] | Mapping[str, str]
Script = Callable[[dict[str, Any]], Answer]


def fault(name: str) -> Mapping[str, str]:
    """Returns the answer that makes the server misbehave. Raises ValueError for an unknown fault."""
    if name not in FAULTS:
        raise ValueError(f"fault {name!r} is unknown; known are {', '.join(FAULTS)}")
    return {"fault": name}


class ChatServer:
    """The endpoint, in threads of this process.

    Attributes:
      url: its base address.
      bodies: every question, in order.
      keys: the key that came with each.
      paths: every path asked for.
    """

    def __init__(self, script: Script, *, key: str = ""):
        """Listens on a loopback port; with a key, questions that lack it get 401."""
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.key, self._script = key, script
        self._over = threading.Event()

        class Handler(_Handler):
            chat = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, address: None  # clients that give up are what it is for
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, body: dict[str, Any], key: str) -> Answer:
        """Notes a question and returns the script's answer."""
        self.bodies.append(body)
        self.keys.append(key)
        if self.key and key != self.key:
            return 401
        return self._script(body)

    def wait(self) -> None:
        """Waits as long as the server lives."""
        self._over.wait(60)

    def close(self) -> None:
        """Stops, and frees threads that hang."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> ChatServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    chat: ChatServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""

    def do_POST(self) -> None:
        """Answers a question."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.chat.paths.append(self.path)
        answer = self.chat.answer(body, key)
        if isinstance(answer, int):
            headers = {"Retry-After": "0.01"} if answer in (429, 503) else {}
            self._send(json.dumps({"error": {"message": f"told to answer {answer}"}}).encode(), answer, headers)
        elif isinstance(answer, bytes):
            self._send(answer)
        elif isinstance(answer, Mapping):
            self._misbehave(answer["fault"], key)
        else:
            self._send(json.dumps(_completion(body, answer)).encode())

    def _misbehave(self, name: str, key: str) -> None:
        if name == "hang":
            self.chat.wait()
        elif name == "garbage":
            self._send(b"<html>no json")
        elif name == "empty":
            self._send(b'{"choices": []}')
        elif name == "echo_key":
            message = f"Incorrect API key provided: {key}"
            self._send(json.dumps({"error": {"message": message}}).encode(), 401)
        # An answer that was sent whole leaves the connection open, as it does not say otherwise: the client's next
        # question must not meet a connection that is gone.
        self.close_connection = name in ("hang", "drop")

    def _send(self, data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _completion(body: Mapping[str, Any], answer: str | Sequence[tuple[str, str]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer if isinstance(answer, str) else None}
    if not isinstance(answer, str):
        message["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(answer)
        ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
