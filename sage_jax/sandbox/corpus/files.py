"""Attacks on files: reading a secret, reading ground truth, writing outside, filling the disk."""

from sage_jax.sandbox.corpus.attack import CRASHED, ERROR, MEMORY, OK, TIMEOUT, attack

READ = (
    attack("read_secret", "result = open(input['secret']).read()", ERROR),
    attack("read_ground_truth", "import json\nresult = json.load(open(input['ground_truth']))", ERROR),
    attack(
        "read_by_descriptor", "import os\nresult = os.read(os.open(input['secret'], os.O_RDONLY), 99).decode()", ERROR
    ),
    attack("read_by_path_only", "import os\nresult = os.read(os.open(input['secret'], os.O_PATH), 99).decode()", ERROR),
    attack("read_with_linecache", "import linecache\nresult = linecache.getlines(input['secret'])", OK),
    attack(
        "read_with_cat",
        "import subprocess\nresult = subprocess.run(['cat', input['secret']], capture_output=True).stdout.decode()",
        OK,
        ERROR,
    ),
    attack(
        "read_with_libc",
        """
        import ctypes
        libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(100)
        libc.read(libc.open(input['secret'].encode(), 0), buffer, 99)
        result = buffer.value.decode()
        """,
        OK,
    ),
    attack(
        "read_with_mmap",
        """
        import mmap
        with open(input['secret'], 'rb') as file:
            result = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:].decode()
        """,
        ERROR,
    ),
    attack("list_the_folder", "import os\nresult = os.listdir(os.path.dirname(input['secret']))", ERROR),
    attack(
        "glob_for_it",
        "import glob\nresult = [open(p).read() for p in glob.glob(input['folder'] + '/**', recursive=True)]",
        OK,
        ERROR,
    ),
    attack("climb_from_scratch", "result = open('../' * 30 + input['secret'].lstrip('/')).read()", ERROR),
    attack("proc_self_root", "result = open('/proc/self/root' + input['secret']).read()", ERROR),
    attack("proc_1_root", "result = open('/proc/1/root' + input['secret']).read()", ERROR),
    attack(
        "proc_parent_root", "import os\nresult = open(f'/proc/{os.getppid()}/root' + input['secret']).read()", ERROR
    ),
    attack("proc_host_environ", "result = open(f\"/proc/{input['host_pid']}/environ\").read()", ERROR),
    attack("proc_host_memory", "result = len(open(f\"/proc/{input['host_pid']}/mem\", 'rb').read(1))", ERROR),
    attack("proc_host_maps", "result = open(f\"/proc/{input['host_pid']}/maps\").read()", ERROR),
    attack(
        "proc_all_environs",
        """
        import glob
        result = []
        for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):
            try:
                result.append(open(path, 'rb').read().decode(errors='replace'))
            except OSError:
                pass
        """,
        OK,
        ERROR,
    ),
    attack("own_environment", "import os\nresult = dict(os.environ)", OK),
    attack("passwords", "result = open('/etc/shadow').read()", ERROR),
    attack("accounts", "result = open('/etc/passwd').read()", ERROR),
    attack("keys", "import os, glob\nresult = [open(p).read() for p in glob.glob(os.path.expanduser('~/.ssh/*'))]", OK),
    attack("symlink_to_secret", "import os\nos.symlink(input['secret'], 'link')\nresult = open('link').read()", ERROR),
    attack("hard_link_to_secret", "import os\nos.link(input['secret'], 'link')\nresult = open('link').read()", ERROR),
    attack("rename_secret", "import os\nos.rename(input['secret'], 'mine')\nresult = open('mine').read()", ERROR),
    attack(
        "symlink_race",
        """
        import os, threading
        open('a', 'w').write('x')
        def swap():
            for i in range(2000):
                os.symlink(input['secret'], 'b')
                os.replace('b', 'a')
        threading.Thread(target=swap, daemon=True).start()
        result = set()
        for i in range(2000):
            try:
                result.add(open('a').read())
            except OSError:
                pass
        result = sorted(result)
        """,
        OK,
        ERROR,
        CRASHED,
    ),
    attack(
        "raw_disk",
        "import glob\nresult = [open(p, 'rb').read(16).hex() for p in glob.glob('/dev/[svn][dv]*')]",
        OK,
        ERROR,
    ),
    attack("kernel_memory", "result = open('/dev/mem', 'rb').read(16).hex()", ERROR),
    attack(
        "make_a_device",
        """
        import os, stat
        os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0))
        result = open('disk', 'rb').read(16).hex()
        """,
        ERROR,
    ),
    attack(
        "open_by_handle",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        result = libc.open_by_handle_at(-100, ctypes.create_string_buffer(64), 0)
        assert result < 0
        """,
        OK,
    ),
)

WRITE = (
    attack("write_outside", "open(input['outside'] + '/new', 'w').write('was here')", ERROR),
    attack("append_outside", "open(input['outside'] + '/kept', 'a').write('was here')", ERROR),
    attack("truncate_outside", "import os\nos.truncate(input['outside'] + '/kept', 0)", ERROR),
    attack("delete_outside", "import os\nos.unlink(input['outside'] + '/kept')", ERROR),
    attack("delete_tree_outside", "import shutil\nshutil.rmtree(input['outside'])", ERROR),
    attack("rename_outside", "import os\nos.rename(input['outside'] + '/kept', input['outside'] + '/gone')", ERROR),
    attack("folder_outside", "import os\nos.mkdir(input['outside'] + '/folder')", ERROR),
    attack("mode_outside", "import os\nos.chmod(input['outside'] + '/kept', 0o777)", ERROR),
    attack("times_outside", "import os\nos.utime(input['outside'] + '/kept', (0, 0))", ERROR),
    attack("owner_outside", "import os\nos.chown(input['outside'] + '/kept', 1, 1)", ERROR),
    attack("attribute_outside", "import os\nos.setxattr(input['outside'] + '/kept', 'user.x', b'1')", ERROR),
    attack(
        "symlink_out", "import os\nos.symlink(input['outside'] + '/new', 'door')\nopen('door', 'w').write('x')", ERROR
    ),
    attack(
        "folder_link_out",
        "import os\nos.symlink(input['outside'], 'door')\nopen('door/new', 'w').write('x')",
        OK,
        ERROR,
    ),
    attack("shell_outside", "import os\nassert os.system(f\"echo x > {input['outside']}/new\") != 0", OK, ERROR),
    attack("patch_the_runner_on_disk", "open(input['guest'] + '/start.py', 'a').write('# was here')", ERROR),
    attack("patch_the_library", "import json\nopen(json.__file__, 'a').write('# was here')", ERROR),
    attack(
        "plant_a_module", "import os\nopen(os.path.dirname(os.__file__) + '/sitecustomize.py', 'w').write('1')", ERROR
    ),
    attack("startup_file", "open('/etc/ld.so.preload', 'w').write('x')", ERROR),
    attack("leave_in_tmp", "import os\nopen('/var/tmp/' + input['token'], 'w').write('x')", ERROR),
    attack("leave_in_shm", "open('/dev/shm/' + input['token'], 'w').write('x')", ERROR),
    attack("kernel_settings", "open('/proc/sys/kernel/core_pattern', 'w').write('core')", ERROR),
    attack("cgroup_release", "open('/sys/fs/cgroup/release_agent', 'w').write('x')", ERROR),
    attack("own_oom_score", "open('/proc/self/oom_score_adj', 'w').write('-1000')", OK, ERROR),
    attack("mount", "import ctypes\nassert ctypes.CDLL(None).mount(b'/', b'/tmp', None, 4096, None) != 0", OK, CRASHED),
    attack("chroot", "import os\nos.chroot('.')", ERROR),
    attack("unmount", "import ctypes\nassert ctypes.CDLL(None).umount2(b'/proc', 2) != 0", OK, CRASHED),
    attack("user_namespace", "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) != 0", OK, CRASHED),
    attack("enter_namespace", "import ctypes, os\nassert ctypes.CDLL(None).setns(os.open('/', 0), 0) != 0", OK, ERROR),
)

DISK = (
    attack(
        "one_large_file", "with open('x', 'wb') as f:\n    while True:\n        f.write(bytes(1 << 20))", ERROR, CRASHED
    ),
    attack(
        "many_files",
        "i = 0\nwhile True:\n    open(str(i), 'wb').write(bytes(1 << 18))\n    i += 1",
        ERROR,
        TIMEOUT,
        CRASHED,
    ),
    attack(
        "reserve_space",
        "import os\nos.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 1 << 36)",
        ERROR,
        CRASHED,
    ),
    attack(
        "sparse_file",
        "f = open('x', 'wb')\nf.truncate(1 << 40)\nf.seek(1 << 39)\nf.write(b'x')\nf.flush()",
        ERROR,
        CRASHED,
    ),
    attack(
        "deep_folders", "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')", ERROR, TIMEOUT, MEMORY, CRASHED
    ),
    attack("link_loop", "import os\nos.symlink('a', 'b')\nos.symlink('b', 'a')\nopen('a')", ERROR),
)
