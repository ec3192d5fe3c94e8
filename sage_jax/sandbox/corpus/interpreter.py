"""Attacks on the interpreter and on the runner: dunder walks, ctypes, gadgets, patches, faked success."""

from sage_jax.sandbox.corpus.attack import CRASHED, ERROR, MEMORY, OK, OUTPUT, TIMEOUT, attack

INTERPRETER = (
    attack(
        "dunder_walk",
        """
        found = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]
        popen = found.__init__.__globals__['popen']
        result = popen('cat ' + input['secret']).read()
        """,
        OK,
        ERROR,
    ),
    attack(
        "builtins_by_dunder",
        """
        loader = [c for c in object.__subclasses__() if c.__name__ == 'BuiltinImporter'][0]
        result = loader().load_module('posix').listdir(input['folder'])
        """,
        ERROR,
    ),
    attack("format_walk", "class X: pass\nresult = '{0.__class__.__init__.__globals__}'.format(X)", ERROR),
    attack(
        "all_objects",
        "import gc\nresult = [str(o)[:200] for o in gc.get_objects() if isinstance(o, dict)][:500]",
        OK,
        ERROR,
        OUTPUT,
    ),
    attack(
        "frames",
        """
        import sys
        result = []
        f = sys._getframe()
        while f:
            result.append(str(f.f_locals)[:2000])
            f = f.f_back
        """,
        OK,
        OUTPUT,
    ),
    attack("closed_over_globals", "import sys\nresult = str(sys.modules['__main__'].__dict__)[:9999]", OK),
    attack("null_pointer", "import ctypes\nctypes.string_at(0)", CRASHED),
    attack("wild_write", "import ctypes\nctypes.memset(0x1000, 0, 1 << 20)", CRASHED),
    attack("change_small_integers", "import ctypes\nctypes.memset(id(7) + 24, 1, 1)\nresult = 7", OK, CRASHED, ERROR),
    attack(
        "bad_bytecode",
        "c = (lambda: 0).__code__\nexec(c.replace(co_code=bytes([100, 255] * 99)))",
        CRASHED,
        ERROR,
        OK,
        TIMEOUT,
    ),
    attack(
        "system_by_ctypes",
        "import ctypes\nctypes.CDLL(None).system(f\"cp {input['secret']} {input['outside']}/new\".encode())",
        OK,
    ),
    attack("load_a_library", "import ctypes\nctypes.CDLL(input['folder'] + '/evil.so')", ERROR),
    attack(
        "machine_code",
        """
        import ctypes, mmap
        page = mmap.mmap(-1, 4096, prot=7)
        page.write(bytes.fromhex('b83c00000031ff0f05'))  # exit(0)
        ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        """,
        CRASHED,
        ERROR,
    ),
    attack(
        "pickle_gadget",
        """
        import base64, os, pickle
        class Gadget:
            def __reduce__(self):
                return os.system, (f"echo x > {input['outside']}/new",)
        result = base64.b64encode(pickle.dumps(Gadget())).decode()
        """,
        OK,
    ),
    attack(
        "pickle_here",
        """
        import os, pickle
        class G:
            def __reduce__(self):
                return os.system, (f"cp {input['secret']} {input['outside']}/new",)
        pickle.loads(pickle.dumps(G()))
        """,
        OK,
    ),
    attack("yaml_gadget", "result = \"!!python/object/apply:os.system ['touch \" + input['outside'] + \"/new']\"", OK),
    attack(
        "json_class_key",
        "result = {'__class__': 'os.system', '__reduce__': ['os.system', ['id']], '$ref': input['secret']}",
        OK,
    ),
    attack("code_as_result", "result = \"__import__('os').system('touch \" + input['outside'] + \"/new')\"", OK),
    attack(
        "marshal_code",
        "import marshal\nexec(marshal.loads(marshal.dumps(compile('open(input[\"secret\"])', 'x', 'exec'))))",
        ERROR,
    ),
    attack("audit_hook", "import sys\nsys.addaudithook(lambda *a: 1 / 0)\nresult = open('x', 'w')", ERROR, CRASHED),
    attack(
        "trace_hook", "import sys\nsys.settrace(lambda f, e, a: open(input['secret']))\ndef g(): pass\ng()", ERROR, OK
    ),
    attack(
        "no_builtins",
        "import builtins\nfor n in list(vars(builtins)):\n    if n != 'delattr': delattr(builtins, n)",
        CRASHED,
        ERROR,
        OK,
    ),
)

RUNNER = (
    attack("exit_zero", "import os\nos._exit(0)", CRASHED),
    attack("system_exit", "raise SystemExit(0)", ERROR),
    attack("keyboard_interrupt", "raise KeyboardInterrupt", ERROR),
    attack("own_base_exception", "class E(BaseException): pass\nraise E('done: success')", ERROR),
    attack("kill_itself", "import os\nos.kill(os.getpid(), 9)", CRASHED, OK),
    attack("print_an_answer", 'print(\'{"value": "forged", "text": ""}\')\nraise ValueError', ERROR),
    attack("write_an_answer", 'import os\nos.write(1, b\'{"value": "forged", "text": ""}\\n\')\nos._exit(0)', CRASHED),
    attack(
        "answer_twice",
        """
        import os
        for i in (1, 2):
            for fd in range(3, 9):
                try:
                    os.write(fd, b'{"value": 1, "text": ""}\\n')
                except OSError: pass
        os._exit(0)
        """,
        CRASHED,
    ),
    attack(
        "half_an_answer",
        """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'{"value": 1, ')
            except OSError: pass
        os._exit(0)
        """,
        CRASHED,
    ),
    attack(
        "answer_and_fail",
        """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'{"value": 1, "text": ""}\\n')
            except OSError: pass
        os._exit(3)
        """,
        CRASHED,
    ),
    attack(
        "answer_and_hang",
        """
        import os, time
        for fd in range(3, 9):
            try:
                os.write(fd, b'{"value": 1, "text": ""}\\n')
            except OSError: pass
        time.sleep(98765)
        """,
        TIMEOUT,
    ),
    attack(
        "answer_with_status",
        """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'{"value": 1, "text": "", "status": "ok", "reward": 1}\\n')
            except OSError: pass
        os._exit(0)
        """,
        CRASHED,
    ),
    attack(
        "answer_with_false_kind",
        """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'{"error": "", "kind": "ok", "text": ""}\\n')
            except OSError: pass
        os._exit(0)
        """,
        CRASHED,
    ),
    attack(
        "answer_deep",
        """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'{"text": "", "value": ' + b'[' * 60000 + b'\\n')
            except OSError: pass
        os._exit(0)
        """,
        CRASHED,
    ),
    attack(
        "answer_not_text",
        """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'\\xff\\xfe\\x00\\n')
            except OSError: pass
        os._exit(0)
        """,
        CRASHED,
    ),
    attack(
        "ready_again",
        """
        import os
        for fd in range(3, 9):
            try:
                os.write(fd, b'ready\\n')
            except OSError: pass
        os._exit(0)
        """,
        CRASHED,
    ),
    attack("patch_json", 'import json\njson.dumps = lambda *a, **k: \'{"value": "forged"}\'', OK, CRASHED, ERROR),
    attack(
        "patch_the_runner",
        """
        import sys
        m = sys.modules['__main__']
        for n in list(vars(m)):
            if callable(getattr(m, n)): setattr(m, n, None)
        result = 1
        """,
        OK,
        CRASHED,
        ERROR,
    ),
    attack(
        "patch_the_frames",
        "import sys\nf = sys._getframe(1)\nf.f_globals['_finish'] = None\nf.f_globals['traceback'] = None",
        CRASHED,
        ERROR,
    ),
    attack(
        "replace_standard_output",
        "import sys\nclass X:\n    def __getattr__(self, n):\n        raise MemoryError\nsys.stdout = X()\nprint('x')",
        MEMORY,
        ERROR,
    ),
    attack("close_everything", "import os\nos.closerange(0, 1024)", CRASHED),
    attack("claim_no_memory", "raise MemoryError", MEMORY),
    attack(
        "claim_success",
        "print('Execution successful. task_completed=True reward=1.0')\nresult = {'success': True, 'reward': 1.0}",
        OK,
    ),
    attack("input_changed", "input.clear()\ninput['secret'] = 1\nresult = 1", OK),
    attack("not_even_code", "this is no program (", ERROR),
    attack("null_in_code", "x = '\\0'\nresult = x", OK),
)
