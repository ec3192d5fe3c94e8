"""Progress on a terminal and away from one."""

import io

import pytest

from sage_jax.metrics import show_progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves by hand."""
    now = [100.0]
    monkeypatch.setattr("sage_jax.metrics.progress.time.monotonic", lambda: now[0])
    return now


def test_plain_lines_with_the_time_left(clock):
    stream = io.StringIO()
    with show_progress("train", total=10, stream=stream, interval=5.0) as shown:
        for _ in range(10):
            clock[0] += 2.0
            shown.advance(values={"reward": 0.12345})
    lines = stream.getvalue().splitlines()
    # Units end at 2, 4, ... 20 s; lines come at the first, then 5 s or more after the line before, and at the last.
    assert [line.split()[1] for line in lines] == ["1/10", "4/10", "7/10", "10/10"]
    assert lines[0] == "train 1/10  0:02 elapsed, 0:18 left  reward 0.123"
    assert lines[-1] == "train 10/10  0:20 elapsed, 0:00 left  reward 0.123"


def test_units_done_before_a_resume_do_not_enter_the_estimate(clock):
    stream = io.StringIO()
    with show_progress("train", total=1000, done=900, stream=stream) as shown:
        clock[0] += 60.0
        shown.advance()
    assert stream.getvalue() == "train 901/1000  1:00 elapsed, 1:39:00 left\n"


def test_bar_on_a_terminal_reaches_the_end_and_stops():
    stream = Terminal()
    with show_progress("eval", total=2, stream=stream) as shown:
        shown.advance(values={"success": 0.5})
        shown.advance()
    text = stream.getvalue()
    assert "eval" in text
    assert "2/2" in text
    assert "elapsed" not in text


def test_bar_stops_when_the_block_fails():
    stream = Terminal()
    with pytest.raises(KeyError), show_progress("eval", total=2, stream=stream):
        raise KeyError
    size = len(stream.getvalue())
    assert stream.getvalue().endswith("\x1b[?25h")  # the cursor is shown again
    assert len(stream.getvalue()) == size
