import pytest

from sage_jax.errors import SandboxError
from sage_jax.sandbox.channel import Channel
from sage_jax.sandbox.interpreter import CallFault, Interpreter
from sage_jax.sandbox.process import SandboxedProcess


def channel(script: str, **options) -> Channel:
    """A channel to a shell script that plays the sandbox."""
    return Channel(SandboxedProcess(["/bin/sh", "-c", script], env={"PATH": "/bin:/usr/bin"}), start_s=5.0, **options)


def test_lines_go_there_and_back():
    echo = channel("echo ready; while read line; do echo $line; done")
    echo.send({"a": [1]}, timeout_s=5.0)
    assert echo.receive(timeout_s=5.0) == {"a": [1]}
    assert echo.alive
    echo.close()
    assert not echo.alive


def test_a_sandbox_that_does_not_stand_is_an_error():
    with pytest.raises(SandboxError, match=r"it is gone.*broken"):
        channel("echo broken >&2; exit 3")
    with pytest.raises(SandboxError, match="first line"):
        channel("echo hello; sleep 9")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo ready; sleep 9", "no line within 0.3 s"),
        ("echo ready; exit 2", "it is gone"),
        ("echo ready; echo no json", "no JSON"),
        ("echo ready; yes | tr -d '\\n'", "a line of more than 1 KiB"),
    ],
)
def test_what_goes_wrong_is_told_and_ends_the_process(script: str, reason: str):
    broken = channel(script, line_kb=1)
    with pytest.raises(SandboxError, match=reason):
        broken.receive(timeout_s=0.3)
    assert not broken.alive


def test_a_reader_that_does_not_read_is_an_error():
    deaf = channel("echo ready; sleep 9")
    with pytest.raises(SandboxError, match="does not read"):
        deaf.send("x" * (1 << 20), timeout_s=0.3)


def test_calls_are_answered_by_the_host(any_backend):
    def handler(app, name, arguments):
        if name == "refuse":
            raise CallFault("not today")
        return [app, name, arguments]

    shell = Interpreter(any_backend, handler, calls=3)
    code = "print(apis.a.b(x=1))\nprint(apis['c'].d())\ntry:\n    apis.a.refuse()\nexcept Exception as e:\n    print(e)"
    assert shell.execute(code, timeout_s=20.0) == (True, "['a', 'b', {'x': 1}]\n['c', 'd', {}]\nnot today\n")
    ran, said = shell.execute("apis.a.b(1)", timeout_s=20.0)
    assert not ran
    assert "by name only" in said
    with pytest.raises(SandboxError, match="more than 3 calls"):
        shell.execute("while True: apis.a.b()", timeout_s=20.0)
    assert not shell.alive


def test_a_turn_has_a_deadline(any_backend):
    shell = Interpreter(any_backend, lambda *_: None)
    with pytest.raises(SandboxError, match="no line within"):
        shell.execute("while True: pass", timeout_s=0.5)
    assert not shell.alive
