"""The first thing that runs inside a sandbox: gives up rights for good, says so, then becomes the wanted program.

Called as `python -I -S start.py JSON`, with {"limits", "uid", "seccomp", "metadata", "network", "python", "argv"}:
`python` is a script of this folder with its arguments, to go on with in this interpreter; `argv`, a command to become.
"""

import json
import os
import resource
import runpy
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Sets limits, user and filter, in an order in which each still may be set."""
    spec = json.loads(sys.argv[1])
    limits = spec["limits"]
    for name, value in (
        ("RLIMIT_CORE", 0),
        ("RLIMIT_AS", limits["memory_bytes"]),
        ("RLIMIT_NPROC", limits["tasks"]),
        ("RLIMIT_NOFILE", limits["open_files"]),
        ("RLIMIT_FSIZE", limits["disk_bytes"]),
        ("RLIMIT_CPU", limits["cpu_s"]),
    ):
        if value is not None:
            # SIGXCPU at the soft CPU limit tells what happened; SIGKILL at the hard one ends those who ignore it.
            resource.setrlimit(getattr(resource, name), (value, value + (name == "RLIMIT_CPU")))
    if spec["uid"] is not None:  # real root is exempt from RLIMIT_NPROC, so it becomes a user that nobody else is
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    os.umask(0o077)
    if spec["seccomp"]:
        runpy.run_path(os.path.join(FOLDER, "filter.py"))["install"](metadata=spec["metadata"], network=spec["network"])
    os.write(1, b"ready\n")  # whatever fails from here on is the program's doing
    if spec["argv"]:
        os.execv(spec["argv"][0], spec["argv"])
    sys.argv = spec["python"]
    runpy.run_path(os.path.join(FOLDER, sys.argv[0]), run_name="__main__")


if __name__ == "__main__":
    main()
