"""The ways to confine a process, one class each. `choose.py` finds out which of them work on this machine.

A backend wraps a command: sandlock confines the process in place (Landlock for files and ports, seccomp for calls),
bubblewrap gives it namespaces with a file system of their own, docker does the same by its daemon. Limits and a seccomp
filter are set inside by `guest/start.py`, alike for all. Nothing of the host is visible but system libraries, the
Python installation and what `Access` names.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Protocol

from sage_jax.errors import SandboxError
from sage_jax.sandbox.process import SandboxedProcess
from sage_jax.sandbox.spec import MEGABYTE, Access, Limits

GUEST = str(pathlib.Path(__file__).parent / "guest")
PYTHON = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_SCRATCH = "/tmp"
_USERS = (61184, 65519)  # the range that systemd's DynamicUser draws from: belongs to nobody
_FIX_BWRAP = "install bubblewrap (Debian: apt-get install bubblewrap)"
_FIX_SANDLOCK = "pip install sandlock, on Linux 6.12 or newer (Landlock ABI 6)"
_FIX_DOCKER = "install docker and start its daemon"


class Backend(Protocol):
    """One way to confine a process."""

    name: str

    def missing(self) -> str | None:
        """Returns why it cannot be used here, as "reason; fix", or None."""

    def start(self, command: Sequence[str], limits: Limits, access: Access) -> SandboxedProcess:
        """Starts a command (an absolute path and arguments), or a script of `guest/` (its bare name and arguments)."""


class Sandlock:
    """sandlock: no root, no namespaces, no daemon. Needs a new kernel."""

    name = "sandlock"

    def missing(self) -> str | None:
        """Says what is missing."""
        if importlib.util.find_spec("sandlock") is None:
            return f"the package sandlock is not installed; {_FIX_SANDLOCK}"
        import sandlock

        if sandlock.landlock_abi_version() < sandlock.min_landlock_abi():
            return f"the kernel's Landlock ABI is {sandlock.landlock_abi_version()}; {_FIX_SANDLOCK}"
        return None

    def start(self, command: Sequence[str], limits: Limits, access: Access) -> SandboxedProcess:
        """Starts a command under a supervisor process of its own."""
        folder = tempfile.mkdtemp(prefix="sage-sandbox-")
        work, store = os.path.join(folder, "work"), os.path.join(folder, "store")
        os.mkdir(work, 0o700)
        os.mkdir(store, 0o700)
        policy: dict[str, Any] = {
            "fs_readable": [*_readable(access), "/dev/null", "/dev/zero", "/dev/urandom"],
            "fs_writable": [work, "/dev/null", *access.writable],
            "workdir": work,
            "fs_storage": store,
            "cwd": work,
            "max_disk": limits.disk_mb * MEGABYTE,
            "max_memory": limits.memory_mb * limits.processes * MEGABYTE,
            "max_processes": limits.processes,
            "net_allow_bind": [] if access.port is None else [access.port],
            "net_allow": [] if access.port is None else [f"tcp://127.0.0.1:{access.port}"],
            "clean_env": True,
            "env": _environment(access, work),
            "no_coredump": True,
        }
        if os.geteuid() == 0:  # else the process would keep root's capabilities
            policy |= {"uid": 65534, "gid": 65534}
        argv = _inside(command, limits, access, metadata=False)
        spec = json.dumps({"package": _package_folder("sandlock"), "policy": policy, "argv": argv})
        wrapper = [PYTHON, "-I", "-S", "-B", os.path.join(GUEST, "lock.py"), spec]
        return SandboxedProcess(wrapper, env=_environment(access, work), graceful=True, folders=[folder])


class Bubblewrap:
    """bubblewrap: namespaces without a daemon. Needs unprivileged user namespaces, or root."""

    name = "bubblewrap"

    def missing(self) -> str | None:
        """Says what is missing."""
        return None if shutil.which("bwrap") else f"there is no program bwrap; {_FIX_BWRAP}"

    def start(self, command: Sequence[str], limits: Limits, access: Access) -> SandboxedProcess:
        """Starts a command in namespaces of its own."""
        uid = random.SystemRandom().randint(*_USERS) if os.geteuid() == 0 else None
        scratch = limits.disk_mb * MEGABYTE
        argv = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"]
        argv += ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"]
        if uid is None:
            argv += ["--unshare-user", "--disable-userns"]
        for name, value in _environment(access, _SCRATCH).items():
            argv += ["--setenv", name, value]
        argv += ["--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--size", str(scratch), "--tmpfs", _SCRATCH]
        for path in _parents([*_readable(access), *access.writable]):
            argv += ["--perms", "0755", "--dir", path]  # bubblewrap's own choice, 0700, locks out the user inside
        for path in _readable(access):
            argv += ["--ro-bind", path, path]
        for path in access.writable:
            if uid is not None:
                os.chown(path, uid, uid)
            argv += ["--bind", path, path]
        argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _SCRATCH, "--cap-drop", "ALL"]
        if uid is not None:
            argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        # In a user namespace of its own, bubblewrap's first process counts among the user's.
        tasks = limits.processes + (1 if uid is None else 0)
        argv += ["--", *_inside(command, limits, access, tasks=tasks, uid=uid)]
        return SandboxedProcess(argv, env={"PATH": os.defpath})


class Docker:
    """docker: an empty image, into which the same folders of the host are mounted that the other backends show."""

    name = "docker"
    image = "sage-jax-sandbox"

    def missing(self) -> str | None:
        """Says what is missing; makes the empty image the first time."""
        if not shutil.which("docker"):
            return f"there is no program docker; {_FIX_DOCKER}"
        if self._docker("image", "inspect", self.image).returncode == 0:
            return None
        made = self._docker("import", "-", self.image, stdin=b"\0" * 10240)  # a tar file without a member
        if made.returncode:
            return f"{made.stderr.decode(errors='replace').strip()[-200:]}; {_FIX_DOCKER}"
        return None

    def start(self, command: Sequence[str], limits: Limits, access: Access) -> SandboxedProcess:
        """Starts a command in a container of its own."""
        name = f"sage-{os.getpid()}-{random.SystemRandom().getrandbits(64):x}"
        memory = str(limits.memory_mb * limits.processes * MEGABYTE)
        uid = random.SystemRandom().randint(*_USERS)
        argv = ["docker", "run", "--rm", "--interactive", "--init=false", "--name", name, "--network", "none"]
        argv += ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "none"]
        argv += ["--user", f"{uid}:{uid}", "--pids-limit", str(limits.processes), "--hostname", "sandbox"]
        argv += ["--memory", memory, "--memory-swap", memory, "--workdir", _SCRATCH, "--log-driver", "none"]
        argv += ["--tmpfs", f"{_SCRATCH}:rw,nosuid,nodev,uid={uid},gid={uid},size={limits.disk_mb * MEGABYTE}"]
        for key, value in _environment(access, _SCRATCH).items():
            argv += ["--env", f"{key}={value}"]
        for path in _readable(access):
            argv += ["--volume", f"{path}:{path}:ro"]
        for path in access.writable:
            os.chmod(path, 0o777)
            argv += ["--volume", f"{path}:{path}"]
        argv += [self.image, *_inside(command, limits, access)]
        environment = {k: v for k, v in os.environ.items() if k == "PATH" or k.startswith("DOCKER_")}
        return SandboxedProcess(argv, env=environment, stop=lambda: self._docker("kill", name))

    def _docker(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
        try:
            return subprocess.run(["docker", *arguments], input=stdin, capture_output=True, timeout=30)
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"docker {arguments[0]} did not answer within 30 s; restart its daemon") from error


class Unsafe:
    """No sandbox at all: limits only. For machines that have none, when the user insists."""

    name = "none (UNSAFE)"

    def missing(self) -> str | None:
        """Nothing is needed."""
        return None

    def start(self, command: Sequence[str], limits: Limits, access: Access) -> SandboxedProcess:
        """Starts a command with limits, with all of the user's rights."""
        folder = tempfile.mkdtemp(prefix="sage-unsafe-")
        argv = _inside(command, limits, access, seccomp=False)
        return SandboxedProcess(argv, env=_environment(access, folder), folders=[folder])


# In the order in which they are tried: the quickest first; all are held to the same attacks.
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Bubblewrap(), Sandlock(), Docker())}


def _inside(
    command: Sequence[str],
    limits: Limits,
    access: Access,
    *,
    tasks: int | None = None,
    uid: int | None = None,
    seccomp: bool = True,
    metadata: bool = True,
) -> list[str]:
    """Returns the command that sets limits inside and goes on with `command`; the options are `guest/start.py`'s."""
    script = command[0].endswith(".py") and not os.path.isabs(command[0])
    spec = {
        "limits": {
            "memory_bytes": limits.memory_mb * MEGABYTE,
            "disk_bytes": limits.disk_mb * MEGABYTE,
            "open_files": limits.open_files,
            "cpu_s": limits.cpu_s,
            "tasks": tasks,
        },
        "uid": uid,
        "seccomp": seccomp,
        "metadata": metadata,
        "network": access.port is not None,
        "python": list(command) if script else None,
        "argv": None if script else list(command),
    }
    return [PYTHON, "-I", "-S", "-B", os.path.join(GUEST, "start.py"), json.dumps(spec)]


def _readable(access: Access) -> list[str]:
    """Returns the folders to show read-only, outer ones first, so that an inner mount is not hidden."""
    paths = {path for path in _SYSTEM if os.path.exists(path)} | {sys.base_prefix, GUEST, *access.readable}
    return sorted(paths)


def _parents(paths: Sequence[str]) -> list[str]:
    """Returns the folders above `paths`, outer ones first."""
    return sorted({str(parent) for path in paths for parent in pathlib.Path(path).parents} - {"/", _SCRATCH, *_SYSTEM})


def _environment(access: Access, home: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home, **access.env}


@functools.cache
def _package_folder(name: str) -> str:
    """Returns the folder to put on the path so that a package, and little else, can be imported without site."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SandboxError(f"the package {name} is not installed")
    return str(pathlib.Path(spec.origin).parent.parent)
