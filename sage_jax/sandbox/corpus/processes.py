"""Attacks with processes and signals: bombs, orphans, killing or reading the host."""

from sage_jax.sandbox.corpus.attack import CRASHED, ERROR, MEMORY, OK, OUTPUT, TIMEOUT, attack

PROCESSES = (
    attack(
        "fork_bomb",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        TIMEOUT,
        CRASHED,
    ),
    attack(
        "shell_bomb",
        "import subprocess\nsubprocess.run(['sh', '-c', 'f() { f | f & }; f; sleep 98765'])",
        TIMEOUT,
        OK,
        ERROR,
        CRASHED,
    ),
    attack(
        "thread_bomb",
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(99,)).start()",
        ERROR,
        MEMORY,
    ),
    attack("orphan", "import os, time\nif os.fork() == 0:\n    time.sleep(98765)\nresult = 1", OK, TIMEOUT),
    attack(
        "orphan_without_pipes",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 1024)
                time.sleep(98765)
            os._exit(0)
        result = 1
        """,
        OK,
        ERROR,
    ),
    attack(
        "orphan_that_forks_on",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            os.closerange(0, 1024)
            while True:
                if os.fork():
                    os._exit(0)
        result = 1
        """,
        OK,
        ERROR,
        TIMEOUT,
    ),
    attack("shell_orphan", "import os\nos.system('nohup sleep 98765 >/dev/null 2>&1 &')\nresult = 1", OK, TIMEOUT),
    attack("exec", "import os\nos.execv('/bin/sleep', ['sleep', '98765'])", TIMEOUT, ERROR),
    attack("exec_true", "import os\nos.execv('/bin/true', ['true'])", CRASHED, ERROR),
    attack("kill_parent", "import os\nos.kill(os.getppid(), 9)", OK, ERROR, CRASHED),
    attack("stop_parent", "import os\nos.kill(os.getppid(), 19)", OK, ERROR, TIMEOUT),
    attack("kill_everybody", "import os\nos.kill(-1, 9)", ERROR, CRASHED, OK),
    attack("kill_own_group", "import os\nos.killpg(0, 9)", CRASHED, ERROR, OK),
    attack("kill_host", "import os\nos.kill(input['host_pid'], 9)", ERROR),
    attack("kill_bystander", "import os\nos.kill(input['bystander'], 9)", ERROR),
    attack("interrupt_host", "import os\nos.kill(input['host_pid'], 2)", ERROR),
    attack("pidfd_signal", "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(input['bystander']), 9)", ERROR),
    attack("stop_itself", "import os\nos.kill(os.getpid(), 19)", TIMEOUT, OK, CRASHED),
    attack(
        "deaf",
        """
        import signal
        for n in range(1, 65):
            try:
                signal.signal(n, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True: pass
        """,
        TIMEOUT,
    ),
    attack(
        "trace_bystander",
        "import ctypes\nassert ctypes.CDLL(None).ptrace(16, input['bystander'], 0, 0) != 0",
        OK,
        CRASHED,
    ),
    attack(
        "trace_parent", "import ctypes, os\nassert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) != 0", OK, CRASHED
    ),
    attack(
        "read_host_memory",
        """
        import ctypes
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(64)), 64)
        assert ctypes.CDLL(None).process_vm_readv(input['host_pid'], vector, 1, vector, 1, 0) < 0
        """,
        OK,
        CRASHED,
    ),
    attack("steal_descriptor", "import ctypes\nassert ctypes.CDLL(None).syscall(438, 3, 1, 0) < 0", OK, CRASHED),
    attack("become_root", "import os\nos.setuid(0)\nresult = open('/etc/shadow').read()", ERROR),
    attack("raise_limits", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))", ERROR),
    attack(
        "raise_process_limit",
        """
        import os, resource
        resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))
        for i in range(99):
            if os.fork() == 0:
                os._exit(0)
        """,
        ERROR,
        OK,
        CRASHED,
    ),
    attack("raise_priority", "import os\nos.nice(-20)", ERROR),
    attack("real_time", "import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))", ERROR),
    attack("set_the_clock", "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)", ERROR),
    attack(
        "set_user_program",
        "import os, shutil\nshutil.copy('/bin/sh', 'sh')\nos.chmod('sh', 0o4755)\nresult = os.system('./sh -c id')",
        OK,
        ERROR,
    ),
    attack("sudo", "import subprocess\nsubprocess.run(['sudo', '-n', 'id'], check=True)", ERROR),
    attack(
        "mount_program", "import subprocess\nsubprocess.run(['mount', '-t', 'tmpfs', 'x', '/tmp'], check=True)", ERROR
    ),
    attack("reboot", "import ctypes\nassert ctypes.CDLL(None).reboot(0x89ABCDEF) != 0", OK, CRASHED),
    attack(
        "children_that_spin",
        "import os\nfor i in range(2):\n    if os.fork() == 0:\n        while True: pass\nos.wait()",
        TIMEOUT,
    ),
    attack("children_that_print", "import os\nos.fork()\nwhile True:\n    os.write(2, b'x' * 4096)", OUTPUT),
)
