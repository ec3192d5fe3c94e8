"""Programs of an agent in the real sandbox."""

import pytest

from sage_jax.errors import SandboxError
from sage_jax.sandbox import Limits, choose_backend
from sage_jax.tools import Toolbox
from sage_jax.tools.python import SandboxPython, python_tool


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    try:
        choose_backend()
    except SandboxError as error:
        pytest.skip(f"no sandbox here: {error}")


def test_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    (tmp_path / "a.csv").write_text("1,2")
    run = SandboxPython(limits=Limits(wall_s=5.0, output_kb=16), readable=(str(tmp_path / "a.csv"),))
    toolbox = Toolbox([python_tool(run)])
    for code, outcome, text in (
        ("print(6 * 7)", "ok", "42"),
        (f"print(open({str(tmp_path / 'a.csv')!r}).read())", "ok", "1,2"),
        ("import os; print(os.environ.get('OPENAI_API_KEY'))", "ok", "None"),
        ("x = 1", "failed", "printed nothing"),
        ("print(1); 1 / 0", "failed", "ZeroDivisionError"),
        ("print(open('/etc/passwd').read())", "failed", "Error: [Errno "),  # hidden or forbidden: sandboxes differ
        ("while True: pass", "timeout", ""),
        ("print('x' * 10**6)", "too_large", ""),
    ):
        result = toolbox.call("python", code)
        assert (result.outcome.value, text in result.text) == (outcome, True), code
        assert "root:" not in result.text
