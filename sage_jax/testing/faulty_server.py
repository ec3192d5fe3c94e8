"""A server that speaks SGLang's contract and misbehaves on command, over real sockets.

    with FaultyServer() as server:
        server.plan("429", "ok", "hang")      # the next three answers of /generate; then "ok" for good

It needs no model: a token is a hash of its context and the request's seed, so that a test can tell whether an episode
got exactly the turns that a faultless server gives it. `python -m sage_jax.testing.faulty_server --port 0` runs it as
a process, to be killed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCAB_SIZE = 100
FAULTS = (
    "ok",
    "400",
    "429",
    "500",
    "hang",
    "slow_loris",
    "reset",
    "cut_short",
    "truncated_json",
    "deep_json",
    "long_number",
    "bad_gzip",
    "missing_meta",
    "too_few_logprobs",
    "too_many_ids",
    "no_ids",
    "nan_logprob",
    "positive_logprob",
    "null_logprob",
    "other_id",
    "id_outside",
    "wrong_prompt_tokens",
    "span_gap",
    "unknown_reason",
    "stale",
    "abort",
)
Meta = dict[str, Any]


def next_token(context: Sequence[int], seed: int) -> int:
    """Returns the token that follows a context: the server's whole policy."""
    digest = hashlib.blake2b(json.dumps([*context, seed]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % VOCAB_SIZE


def turn_ids(context: Sequence[int], seed: int, count: int) -> tuple[int, ...]:
    """Returns the turn that a faultless server gives."""
    ids = list(context)
    for _ in range(count):
        ids.append(next_token(ids, seed))
    return tuple(ids[len(context) :])


class FaultyServer:
    """The server, in threads of this process.

    Attributes:
      url: its address.
      paths: every path that was called, in order.
      bodies: every body of /generate, in order.
      version: weight version that it claims.
      keeps_version: False forgets at once every version it is given.
      status: HTTP status of answers that cannot be read: deep_json, long_number and bad_gzip.
      update_s: seconds that it takes to load weights.
      weight_bodies: every body of /update_weights_from_tensor, in order.
      tensor_calls: how many of these calls it answers; later ones are refused.
      ranks: how many copies of the tensors it wants.
      session_open: whether an update from tensors has begun and not ended.
      paused: whether generation is held; turns are answered all the same.
      key: API key it asks for; empty asks for none.
      context_length: longest context that it claims to take; None says nothing, as SGLang by default.
      max_req_input_len: longest prompt that it claims to take; None says nothing.
    """

    def __init__(self, port: int = 0, *, delay_s: float = 0.0):
        """Listens on a loopback port; each turn takes `delay_s` seconds."""
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.version, self.keeps_version, self.key = "default", True, ""
        self.status, self.update_s, self.paused = 200, 0.0, False
        self.weight_bodies: list[dict[str, Any]] = []
        self.tensor_calls, self.ranks, self.session_open = 1_000_000, 1, False
        self.context_length: int | None = None
        self.max_req_input_len: int | None = None
        self._delay, self._plan = delay_s, collections.deque[str]()
        self._lock, self._over = threading.Lock(), threading.Event()

        class Handler(_Handler):
            faulty = self

        self._server = _HttpServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def plan(self, *faults: str) -> None:
        """Says how the next answers of /generate go. Raises ValueError for an unknown fault."""
        for fault in faults:
            if fault not in FAULTS:
                raise ValueError(f"fault {fault!r} is unknown; known are {', '.join(FAULTS)}")
        with self._lock:
            self._plan.extend(faults)

    def take(self, body: dict[str, Any]) -> str:
        """Notes a call of /generate and returns how to answer it."""
        with self._lock:
            self.bodies.append(body)
            fault = self._plan.popleft() if self._plan else "ok"
        self.wait(self._delay)
        return fault

    def wait(self, seconds: float) -> None:
        """Waits, but no longer than the server lives."""
        self._over.wait(seconds)

    def close(self) -> None:
        """Stops, frees threads that hang and ends connections that clients would keep."""
        self._over.set()
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> FaultyServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._connections = weakref.WeakSet[socket.socket]()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Notes each connection."""
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def end_connections(self) -> None:
        """Ends those that are open."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: clients that give up are what it is for."""


class _Handler(BaseHTTPRequestHandler):
    faulty: FaultyServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers the information calls."""
        self._serve({})

    def do_POST(self) -> None:
        """Answers the others."""
        length = int(self.headers.get("Content-Length") or 0)
        self._serve(json.loads(self.rfile.read(length) or b"{}"))

    def log_message(self, *arguments: Any) -> None:
        """Logs nothing."""

    def _serve(self, body: dict[str, Any]) -> None:
        server = self.faulty
        server.paths.append(self.path)
        if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
            self._send({"error": {"message": "Unauthorized"}}, 401)
        elif self.path == "/generate":
            fault = server.take(body)
            _ANSWERS.get(fault, _Handler._send_damaged)(self, body, fault)
        elif self.path == "/update_weights_from_disk":
            server.wait(server.update_s)
            if server.keeps_version:
                server.version = body["weight_version"]
            self._send({"success": True, "message": "", "num_paused_requests": 0})
        elif self.path in ("/pause_generation", "/continue_generation"):
            server.paused = self.path == "/pause_generation"
            self._send({"status": "ok"})
        elif self.path in ("/begin_weight_update", "/end_weight_update"):
            begins = self.path == "/begin_weight_update"
            self._confirm(server.session_open != begins)
            server.session_open = begins
        elif self.path == "/update_weights_from_tensor":
            server.weight_bodies.append(body)
            fits = server.session_open and len(body["serialized_named_tensors"]) == server.ranks
            taken = fits and len(server.weight_bodies) <= server.tensor_calls
            if taken:
                server.version = body["weight_version"]
            self._confirm(taken)
        elif self.path == "/model_info":
            self._send({"weight_version": server.version})
        elif self.path == "/server_info":
            lengths = {name: getattr(server, name) for name in ("context_length", "max_req_input_len")}
            self._send({"tp_size": server.ranks, **lengths})
        else:
            self._send({"status": "ok"})

    def _send(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self._send_bytes(json.dumps(body).encode(), status, headers=headers)

    def _confirm(self, success: bool) -> None:
        self._send({"success": success, "message": "told so"}, 200 if success else 400)

    def _send_bytes(
        self, data: bytes, status: int = 200, length: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    # How /generate may go.

    def _send_damaged(self, body: dict[str, Any], fault: str) -> None:
        answer = _faultless(body, self.faulty.version)
        _DAMAGES.get(fault, lambda answer: None)(answer)
        self._send(answer)

    def _refuse(self, body: dict[str, Any], fault: str) -> None:
        headers = {"Retry-After": "0.05"} if fault == "429" else None
        self._send({"error": {"message": f"told to answer {fault}"}}, int(fault), headers)

    def _hang(self, body: dict[str, Any], fault: str) -> None:
        self.faulty.wait(60)

    def _trickle(self, body: dict[str, Any], fault: str) -> None:
        data = json.dumps(_faultless(body, self.faulty.version)).encode()
        self._send_bytes(data[:1], length=len(data))
        for position in range(1, len(data)):
            self.faulty.wait(0.05)
            self.wfile.write(data[position : position + 1])
            self.wfile.flush()

    def _reset(self, body: dict[str, Any], fault: str) -> None:
        # Lingering for 0 seconds makes close() send RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _cut_short(self, body: dict[str, Any], fault: str) -> None:
        data = json.dumps(_faultless(body, self.faulty.version)).encode()
        self._send_bytes(data[: len(data) // 2], length=len(data))
        self.close_connection = True

    def _truncate(self, body: dict[str, Any], fault: str) -> None:
        data = json.dumps(_faultless(body, self.faulty.version)).encode()
        self._send_bytes(data[: len(data) // 2])

    def _send_unreadable(self, body: dict[str, Any], fault: str) -> None:
        data = {"deep_json": b"[" * 100_000, "long_number": b'{"a": ' + b"9" * 5000 + b"}", "bad_gzip": b"no gzip"}
        headers = {"Content-Encoding": "gzip"} if fault == "bad_gzip" else None
        self._send_bytes(data[fault], self.faulty.status, headers=headers)


_ANSWERS: dict[str, Callable[[_Handler, dict[str, Any], str], None]] = {
    **dict.fromkeys(("400", "429", "500"), _Handler._refuse),
    "hang": _Handler._hang,
    "slow_loris": _Handler._trickle,
    "reset": _Handler._reset,
    "cut_short": _Handler._cut_short,
    "truncated_json": _Handler._truncate,
    **dict.fromkeys(("deep_json", "long_number", "bad_gzip"), _Handler._send_unreadable),
}


def _faultless(body: dict[str, Any], version: str) -> dict[str, Any]:
    """Returns the right answer to a body of /generate."""
    params = body["sampling_params"]
    ids = turn_ids(body["input_ids"], params["sampling_seed"], params["max_new_tokens"])
    meta = {
        "id": body["rid"],
        "finish_reason": {"type": "length", "length": len(ids)},
        "prompt_tokens": len(body["input_ids"]),
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_version": version,
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
        "output_token_logprobs": [[-1.0, token, None] for token in ids],
    }
    return {"text": "", "output_ids": list(ids), "meta_info": meta}


def _set_logprob(value: Any) -> Callable[[dict[str, Any]], None]:
    def damage(answer: dict[str, Any]) -> None:
        answer["meta_info"]["output_token_logprobs"][0][0] = value

    return damage


def _set_meta(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda answer: answer["meta_info"].update(values)


def _add_id(answer: dict[str, Any]) -> None:
    answer["output_ids"].append(1)
    answer["meta_info"]["output_token_logprobs"].append([-1.0, 1, None])


def _set_id(value: int, *, both: bool) -> Callable[[dict[str, Any]], None]:
    def damage(answer: dict[str, Any]) -> None:
        answer["meta_info"]["output_token_logprobs"][0][1] = value
        if both:
            answer["output_ids"][0] = value

    return damage


def _abort(answer: dict[str, Any]) -> None:
    meta = answer["meta_info"]
    meta["finish_reason"] = {"type": "abort", "message": "told to abort", "status_code": None, "err_type": None}
    for values in (answer["output_ids"], meta["output_token_logprobs"]):
        del values[1:]
    meta |= {"completion_tokens": 1, "weight_versions": []}


_DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "missing_meta": lambda answer: answer.pop("meta_info"),
    "too_few_logprobs": lambda answer: answer["meta_info"]["output_token_logprobs"].pop(),
    "too_many_ids": _add_id,
    "no_ids": lambda answer: answer.update(output_ids=[]),
    "nan_logprob": _set_logprob(float("nan")),
    "positive_logprob": _set_logprob(0.5),
    "null_logprob": _set_logprob(None),
    "other_id": _set_id(0, both=False),
    "id_outside": _set_id(VOCAB_SIZE, both=True),
    "wrong_prompt_tokens": _set_meta(prompt_tokens=0),
    "span_gap": _set_meta(weight_versions=[{"version": "1", "start": 1, "end": 2}]),
    "unknown_reason": _set_meta(finish_reason={"type": "tired"}),
    "stale": _set_meta(weight_version="0", weight_versions=[]),
    "abort": _abort,
}


def main() -> None:
    """Runs it as a process until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that a turn takes")
    arguments = parser.parse_args()
    server = FaultyServer(arguments.port, delay_s=arguments.delay)
    print(f"listening on {server.url}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
