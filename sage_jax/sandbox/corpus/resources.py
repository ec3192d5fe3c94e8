"""Attacks on memory, CPU time and output."""

from sage_jax.sandbox.corpus.attack import CRASHED, ERROR, MEMORY, OK, OUTPUT, TIMEOUT, attack

_FULL = (MEMORY, CRASHED)

MEMORY_ATTACKS = (
    attack("one_large_block", "result = len(bytearray(1 << 33))", *_FULL),
    attack("growing_list", "x = [0]\nwhile True:\n    x += x", *_FULL),
    attack("growing_text", "x = 'x'\nwhile True:\n    x += x", *_FULL),
    attack("many_objects", "x = []\nwhile True:\n    x.append([object() for i in range(10000)])", TIMEOUT, *_FULL),
    attack(
        "caught_and_again",
        "x = []\nwhile True:\n    try:\n        x.append(bytearray(1 << 20))\n    except MemoryError:\n        pass",
        TIMEOUT,
        CRASHED,
    ),
    attack(
        "shared_pages",
        "import mmap\nx = []\nwhile True:\n    x.append(mmap.mmap(-1, 1 << 24))\n    x[-1].write(bytes(1 << 24))",
        ERROR,
        *_FULL,
    ),
    attack(
        "memory_file",
        "import os\nfd = os.memfd_create('x')\nwhile True:\n    os.write(fd, bytes(1 << 20))",
        ERROR,
        CRASHED,
    ),
    attack("system_v_memory", "import ctypes\nassert ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600) < 0", OK, CRASHED),
    attack(
        "fork_and_fill",
        """
        import os
        for i in range(20):
            if os.fork() == 0:
                x = bytearray(b'x') * (1 << 27)
                os._exit(0)
            os.wait()
        """,
        OK,
        ERROR,
        TIMEOUT,
        *_FULL,
    ),
    attack(
        "pipes_full",
        "import os\nx = []\nwhile True:\n    x.append(os.pipe())\n    os.write(x[-1][1], bytes(60000))",
        ERROR,
    ),
    attack(
        "zip_bomb",
        "import zlib\nx = zlib.compress(bytes(1 << 26))\nfor i in range(9):\n    x = zlib.decompress(x) * 99",
        ERROR,
        *_FULL,
    ),
    attack("deep_recursion", "def f():\n    return f()\nf()", ERROR),
    attack(
        "deeper_recursion",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return [f(x)].__repr__()\nf(1)",
        TIMEOUT,
        *_FULL,
        ERROR,
    ),
    attack("deep_parse", "import ast\nast.literal_eval('(' * 100000)", ERROR, *_FULL),
    attack("wide_format", "result = len('%9999999999d' % 1)", ERROR, *_FULL),
)

CPU = (
    attack("endless_loop", "while True: pass", TIMEOUT),
    attack("endless_sleep", "import time\ntime.sleep(98765)", TIMEOUT),
    attack("endless_wait", "import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()", TIMEOUT),
    attack("endless_read", "import os\nr, w = os.pipe()\nos.read(r, 1)", TIMEOUT),
    attack(
        "read_input",
        "result = input_text = __builtins__['input']() if isinstance(__builtins__, dict) else 1",
        ERROR,
        OK,
    ),
    attack("huge_power", "x = 7 ** (7 ** 9)", TIMEOUT, *_FULL),
    attack("huge_shift", "x = 1 << (1 << 40)", ERROR, *_FULL),
    attack("huge_number_text", "import sys\nsys.set_int_max_str_digits(0)\nx = str(1 << 30000000)", TIMEOUT, *_FULL),
    attack("huge_factorial", "import math\nx = math.factorial(10**8)", TIMEOUT, *_FULL),
    attack("regex_bomb", "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", TIMEOUT),
    attack("sum_for_ever", "import itertools\nx = sum(itertools.repeat(0))", TIMEOUT),
    attack("hash_collisions", "x = {}\nfor i in range(10**6):\n    x[i * (2**61 - 1)] = i", TIMEOUT, OK, ERROR, *_FULL),
    attack(
        "ignore_interrupts",
        """
        import signal
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        while True:
            try:
                while True: pass
            except BaseException:
                pass
        """,
        TIMEOUT,
    ),
    attack(
        "endless_exception_text",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        TIMEOUT,
    ),
    attack("endless_finalizer", "class X:\n    def __del__(self):\n        while True: pass\nx = X()\ndel x", TIMEOUT),
    attack("exit_handler", "import atexit, time\natexit.register(time.sleep, 98765)\nresult = 1", OK),
    attack(
        "thread_left_running",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(98765,)).start()\nresult = 1",
        OK,
    ),
)

OUTPUT_ATTACKS = (
    attack("print_flood", "while True:\n    print('x' * 1000)", OUTPUT),
    attack("print_once", "print('x' * 10**8)", OUTPUT, *_FULL),
    attack("error_flood", "import sys\nwhile True:\n    sys.stderr.write('x' * 1000)", OUTPUT),
    attack("raw_flood", "import os\nwhile True:\n    os.write(1, b'x' * 65536)", OUTPUT),
    attack("raw_error_flood", "import os\nwhile True:\n    os.write(2, b'x' * 65536)", OUTPUT),
    attack("child_flood", "import os\nos.system('yes')", OUTPUT, OK, ERROR),
    attack(
        "answer_flood",
        """
        import os
        while True:
            for fd in range(3, 20):
                try:
                    os.write(fd, b'x' * 65536)
                except OSError:
                    pass
        """,
        OUTPUT,
    ),
    attack("large_result", "result = 'x' * (1 << 22)", OUTPUT),
    attack("large_exception", "raise ValueError('x' * (1 << 22))", ERROR),
    attack("result_not_a_number", "result = float('nan')", ERROR),
    attack("result_infinite", "result = [1e999]", ERROR),
    attack("result_object", "result = object()", ERROR),
    attack("result_circular", "result = []\nresult.append(result)", ERROR),
    attack("result_deep", "result = []\nfor i in range(100000):\n    result = [result]", ERROR, *_FULL),
    attack("result_surrogate", "result = '\\ud800'\nprint('\\udfff')", OK, ERROR),
    attack("result_bytes", "result = b'x'", ERROR),
)
