"""The child process: hosts one object and answers calls on it, one at a time, until its pipe closes.

Started by `process.WorkerProcess` as `python -m sage_jax.envs.worker FD`. It shares nothing with its parent but the
pipe, and imports only what the hosted object needs (the parent's main module, and so jax, stays out).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from sage_jax.errors import SageError

_ORPHAN_CHECK_S = 1.0


def main() -> None:
    """Serves until the parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; it then closes the pipe
    threading.Thread(target=_exit_when_orphaned, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    host = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            method, args = pickle.loads(connection.recv_bytes())
            if method == "host":  # the first call: build the object that later calls go to
                reply, host = answer(_build, args)
            else:
                reply, _ = answer(getattr(host, method), args)
            connection.send_bytes(pickle.dumps(reply))
    if hasattr(host, "close"):
        host.close()


def _build(make, *args):
    return make(*args)


def answer(function, args: tuple) -> tuple[tuple, object]:
    """Calls a function; returns the reply to send ("ok", value) or ("error", type, message), and the value."""
    try:
        value = function(*args)
    except SageError as error:
        return ("error", type(error).__name__, str(error)), None
    except Exception as error:  # the edge of the process: the parent gets the whole traceback
        return ("error", type(error).__name__, f"{error}\n{traceback.format_exc()}"), None
    return ("ok", None if function is _build else value), value


def _exit_when_orphaned(parent: int) -> None:
    """Ends the process when its parent is gone, even while a call hangs."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
