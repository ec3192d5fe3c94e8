import json
import time

import pytest

from sage_jax.errors import SandboxError
from sage_jax.sandbox import Access, Backend, Limits, RunStatus, run_program
from sage_jax.sandbox.backends import Unsafe
from sage_jax.sandbox.process import SandboxedProcess, Transcript
from sage_jax.sandbox.run import _read


def test_json_in_json_out(backend: Backend):
    payload = {"words": ["ü", "\n", ""], "n": 3, "nothing": None}
    code = "def f(words, n, nothing):\n    print('seen')\n    return {'words': words * n, 'nothing': nothing}"
    result = run_program(backend, code, payload, call="f")
    assert result.status == RunStatus.OK, result.error
    assert result.value == {"words": ["ü", "\n", ""] * 3, "nothing": None}
    assert result.text == "seen\n"


def test_an_exception_is_told(any_backend: Backend):
    result = run_program(any_backend, "x = {}\nx['here']")
    assert (result.status, result.value) == (RunStatus.ERROR, None)
    assert "KeyError: 'here'" in result.error
    assert "line 2" in result.error


def test_a_deadline_ends_all(any_backend: Backend):
    started = time.monotonic()
    result = run_program(any_backend, "while True: pass", limits=Limits(wall_s=0.5))
    assert result.status == RunStatus.TIMEOUT
    assert 0.5 <= result.wall_s < 1.5
    assert time.monotonic() - started < 30


def test_cpu_time_is_a_limit_of_its_own(any_backend: Backend):
    result = run_program(any_backend, "while True: pass", limits=Limits(wall_s=60.0, cpu_s=1))
    assert result.status == RunStatus.TIMEOUT
    assert "CPU" in result.error


def test_readable_and_writable_folders(backend: Backend, tmp_path):
    shown, hidden, open_folder = tmp_path / "shown", tmp_path / "hidden", tmp_path / "open"
    for folder in (shown, hidden, open_folder):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    access = Access(readable=(str(shown),), writable=(str(open_folder),), env={"NAME": "value"})
    code = (
        "import os\n"
        "result = [open(input['shown'] + '/file').read(), os.environ['NAME']]\n"
        "open(input['open'] + '/new', 'w').write('made inside')\n"
        "for path, mode in ((input['hidden'], 'r'), (input['shown'], 'w')):\n"
        "    try:\n"
        "        open(path + '/file', mode)\n"
        "    except OSError as error:\n"
        "        result.append(type(error).__name__)\n"
    )
    payload = {"shown": str(shown), "hidden": str(hidden), "open": str(open_folder)}
    result = run_program(backend, code, payload, access=access)
    assert result.status == RunStatus.OK, result.error
    assert result.value[:2] == ["shown", "value"]
    assert len(result.value) == 4, "a forbidden file was opened"
    assert (open_folder / "new").read_text() == "made inside"


def test_a_port_serves_inside_only(backend: Backend):
    """A server inside is reached from inside; the port is from the system, so that nobody else has it."""
    code = (
        "import socket, threading\n"
        "server = socket.socket()\n"
        "server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "server.bind(('127.0.0.1', input))\n"
        "server.listen()\n"
        "threading.Thread(target=lambda: server.accept()[0].sendall(b'hello'), daemon=True).start()\n"
        "result = socket.create_connection(('127.0.0.1', input), 5).recv(9).decode()\n"
    )
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = run_program(backend, code, port, access=Access(port=port))
    assert (result.status, result.value) == (RunStatus.OK, "hello"), result.error


def test_a_wrapper_that_fails_is_no_status():
    class Broken(Unsafe):
        def start(self, command, limits, access):
            return SandboxedProcess(["/bin/sh", "-c", "echo broken >&2; exit 3"], env={})

    with pytest.raises(SandboxError, match=r"did not start \(exit, exit code 3\): broken"):
        run_program(Broken(), "result = 1")


def test_a_missing_wrapper_is_named():
    with pytest.raises(SandboxError, match="/nowhere/wrapper"):
        SandboxedProcess(["/nowhere/wrapper"], env={})


def test_limits_without_a_deadline_are_refused(any_backend: Backend):
    with pytest.raises(ValueError, match="wall_s"):
        run_program(any_backend, "result = 1", limits=Limits(wall_s=None))


@pytest.mark.parametrize(
    ("stdout", "code", "status"),
    [
        (b'{"value": 1, "text": ""}\n', 0, RunStatus.OK),
        (b'{"value": 1, "text": ""}\n', 1, RunStatus.CRASHED),
        (b'{"value": 1, "text": ""}\n', 137, RunStatus.CRASHED),
        (b'{"value": 1, "text": ""}\n{"value": 1, "text": ""}\n', 0, RunStatus.CRASHED),
        (b'{"value": NaN, "text": ""}', 0, RunStatus.CRASHED),
        (b'{"value": 1}', 0, RunStatus.CRASHED),
        (b'{"value": 1, "text": 1}', 0, RunStatus.CRASHED),
        (b'{"value": 1, "text": "", "reward": 1}', 0, RunStatus.CRASHED),
        (b'{"error": "", "kind": "memory", "text": ""}', 0, RunStatus.MEMORY),
        (b'{"error": "", "kind": "ok", "text": ""}', 0, RunStatus.CRASHED),
        (b'{"error": "", "kind": ["error"], "text": ""}', 0, RunStatus.CRASHED),
        (b"[" * 100000, 0, RunStatus.CRASHED),
        (b"\xff", 0, RunStatus.CRASHED),
        (b"[]", 0, RunStatus.CRASHED),
        (b"", 0, RunStatus.CRASHED),
        (b"", 152, RunStatus.TIMEOUT),
    ],
)
def test_what_is_read_as_an_answer(stdout: bytes, code: int, status: RunStatus):
    assert _read(Transcript(stdout, b"", code, "exit", 0.1)).status == status


@pytest.mark.parametrize("why", ["timeout", "output"])
def test_an_answer_counts_for_nothing_after_a_limit(why: str):
    answer = json.dumps({"value": 1, "text": ""}).encode()
    result = _read(Transcript(answer, b"", None, why, 0.1))
    assert (result.status, result.value) == (RunStatus(why), None)
