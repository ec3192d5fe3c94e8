"""Runs one program on one input: a JSON line comes in on standard input, a JSON line goes out on standard output.

In: {"code", "input", "call", "text_limit"}. The code runs as a module with `input` among its names. The answer is the
value of the name `result`, or, with `call`, what that function returns for `**input`. Out: {"value"} or {"error",
"kind"}, and "text", what was printed. All of it is the program's word: the host checks its shape and trusts none of it.
"""

import io
import json
import os
import sys
import traceback

TRACEBACK_LIMIT = 4000


def main() -> None:
    """Runs the program with standard output out of its way, then answers."""
    request = json.loads(sys.stdin.buffer.readline())
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what compiled code prints is no answer
    printed = _Printed(request["text_limit"], answer_fd)
    sys.stdout = sys.stderr = printed
    sys.stdin = io.StringIO()
    try:
        answer = json.dumps({"value": _run(request), "text": printed.getvalue()}, allow_nan=False)
    except MemoryError:
        answer = json.dumps({"error": "MemoryError", "kind": "memory", "text": ""})
    except BaseException:  # the edge of the sandbox: SystemExit and KeyboardInterrupt are the program's, too
        error = traceback.format_exc(limit=-5)[-TRACEBACK_LIMIT:]
        answer = json.dumps({"error": error, "kind": "error", "text": printed.getvalue()})
    _finish(answer_fd, answer)


class _Printed(io.StringIO):
    """Keeps what is printed, and ends the program when it is too much."""

    def __init__(self, limit: int, answer_fd: int):
        super().__init__()
        self._left = limit
        self._answer_fd = answer_fd

    def write(self, text: str) -> int:
        """Keeps the text."""
        self._left -= len(text)
        if self._left < 0:
            _finish(self._answer_fd, json.dumps({"error": "too much output", "kind": "output", "text": ""}))
        return super().write(text)


def _finish(answer_fd: int, answer: str) -> None:
    """Answers and ends the process."""
    data = memoryview((answer + "\n").encode("utf-8", "replace"))
    while data:
        data = data[os.write(answer_fd, data) :]
    os._exit(0)  # threads and exit handlers of the program do not get to run on


def _run(request: dict) -> object:
    """Returns the program's value."""
    namespace = {"__name__": "__program__", "input": request["input"]}
    exec(compile(request["code"], "<program>", "exec"), namespace)
    if request["call"] is not None:
        return namespace[request["call"]](**request["input"])
    return namespace.get("result")


if __name__ == "__main__":
    main()
