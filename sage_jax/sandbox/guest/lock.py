"""Runs a command under sandlock (Landlock + seccomp), and ends with everything it started.

Called as `python -I -S lock.py JSON` with {"package", "policy", "argv"}, in a process of its own between the host and
the command: it supervises the command's system calls, so it has to live exactly as long. Whatever leaves its process
group stays its descendant (it is a subreaper), and is killed with the rest.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
import warnings

_PR_SET_CHILD_SUBREAPER = 36
_KILL_ROUNDS = 200


def main() -> None:
    """Starts the command, passes its exit code on, and leaves nothing behind."""
    spec = json.loads(sys.argv[1])
    sys.path.append(spec["package"])
    import sandlock

    warnings.simplefilter("ignore")  # it warns about a setting that it needs all the same (gid)
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("cannot become a subreaper")
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: _end(143))
    policy = sandlock.Sandbox(**spec["policy"], on_exit=sandlock.BranchAction.ABORT)
    process = policy.popen(spec["argv"])
    result: list = []
    waiter = threading.Thread(target=lambda: result.append(process.wait()), daemon=True)
    waiter.start()
    while waiter.is_alive():
        waiter.join(0.05)  # in slices, so that SIGTERM is heard
    if not result:
        _end(1)
    code = result[0].exit_code
    _end(code if code >= 0 else 128 + (result[0].signal if result[0].signal > 0 else signal.SIGKILL))


def _end(code: int) -> None:
    """Kills all descendants, new ones too, and exits."""
    for _ in range(_KILL_ROUNDS):
        found = _children()
        if not found:
            break
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass  # it is gone, or sandlock's own thread has reaped it
        time.sleep(0.002)
    os._exit(code)


def _children() -> list[int]:
    """Returns the living children of all threads of this process; grandchildren become children as parents die."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                found += [int(pid) for pid in file.read().split()]
        except FileNotFoundError:
            pass  # the thread ended
    return found


def _end_with_parent(parent: int) -> None:
    """Ends all when the host is gone."""
    while os.getppid() == parent:
        time.sleep(0.2)
    _end(1)


if __name__ == "__main__":
    main()
