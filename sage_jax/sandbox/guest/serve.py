"""Runs an HTTP server inside a sandbox and carries requests to it, so that nobody outside can reach it otherwise.

Called as `python -I -S serve.py JSON` with {"argv", "port", "start_s"}. A line of JSON comes in on standard input,
{"id", "method", "path", "body", "timeout_s"}; a line goes out on standard output, {"id", "status", "body"} or
{"id", "error"}. The first line out is {"up": true} once the server accepts connections. The server ends with this
process, and this process when its input ends.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time

HOST = "127.0.0.1"


def main() -> None:
    """Starts the server and serves until the input ends."""
    spec = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    server = subprocess.Popen(spec["argv"], stdin=subprocess.DEVNULL, stdout=2, stderr=2)
    try:
        if not _wait(spec["port"], spec["start_s"], server):
            return
        answers.write(b'{"up": true}\n')
        for line in sys.stdin.buffer:
            answers.write(json.dumps(_carry(json.loads(line), spec["port"])).encode() + b"\n")
    finally:
        server.kill()
        server.wait()


def _wait(port: int, start_s: float, server: subprocess.Popen) -> bool:
    """Returns whether the server accepts connections before the time is up."""
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection((HOST, port), 1).close()
            return True
        except OSError:
            time.sleep(0.05)
    return False


def _carry(request: dict, port: int) -> dict:
    """Returns the server's answer to a request."""
    connection = http.client.HTTPConnection(HOST, port, timeout=request["timeout_s"])
    try:
        body = None if request["body"] is None else json.dumps(request["body"])
        connection.request(request["method"], request["path"], body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return {"id": request["id"], "error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()
    return {"id": request["id"], "status": response.status, "body": text}


if __name__ == "__main__":
    main()
