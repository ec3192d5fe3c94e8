"""An interpreter that keeps its names from one piece of code to the next, and asks the host for all else.

Lines of JSON on standard input and output. In: {"code", "text_limit"}. While it runs, the code may call
`apis.<app>.<name>(**arguments)`: out goes {"call": [app, name, arguments]}, back comes {"value"} or {"fault"}. At the
end out goes {"ran", "text"}: whether it ran through, and what it printed or how it failed.
"""

import ast
import io
import json
import linecache
import os
import sys
import traceback

FILE = "<code>"


class Channel:
    """The lines to and from the host, out of reach of `print` and `input`."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "rb")
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.dup2(2, 1)

    def read(self):
        """Returns the next message, None at the end."""
        line = self._in.readline()
        return json.loads(line) if line else None

    def write(self, message) -> None:
        """Sends a message."""
        data = memoryview(json.dumps(message).encode("utf-8", "replace") + b"\n")
        while data:
            data = data[self._out.write(data) :]


class App:
    """One app: its attributes are calls to the host."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel, self._name = channel, name

    def __getattr__(self, api: str):
        def call(*args, **arguments):
            if args:
                raise TypeError(f"{self._name}.{api} takes arguments by name only")
            self._channel.write({"call": [self._name, api, arguments]})
            answer = self._channel.read()
            if "fault" in answer:
                raise Exception(answer["fault"])
            return answer["value"]

        return call


class Apis:
    """All apps, by attribute or by key."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> App:
        return App(self._channel, name)

    def __getitem__(self, name: str) -> App:
        return App(self._channel, name)


class Printed(io.StringIO):
    """Keeps what is printed up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def write(self, text: str) -> int:
        """Keeps the text, or refuses it."""
        self._left -= len(text)
        if self._left < 0:
            raise ValueError("too much output")
        return super().write(text)


def main() -> None:
    """Runs code until the input ends."""
    channel = Channel()
    names = {"__name__": "__main__", "apis": Apis(channel)}
    while (request := channel.read()) is not None:
        printed = Printed(request["text_limit"])
        sys.stdout = sys.stderr = printed
        error = _run(request["code"], names)
        text = printed.getvalue()
        channel.write({"ran": error is None, "text": text if error is None else error})


def _run(code: str, names: dict) -> str | None:
    """Runs code; returns how it failed, None when it did not."""
    try:
        tree = ast.parse(code, FILE)
    except (SyntaxError, ValueError) as error:
        return f"Syntax error in line:\n{(getattr(error, 'text', '') or '').rstrip()}\nMessage: {error}"
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    try:
        exec(compile(tree, FILE, "exec"), names)
    except BaseException as error:  # the edge of the sandbox: SystemExit and KeyboardInterrupt are the code's, too
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
        shown = "".join(traceback.format_list(frames))
        return f"{shown}{''.join(traceback.format_exception_only(error))}"[-2000:].rstrip()
    return None


if __name__ == "__main__":
    main()
