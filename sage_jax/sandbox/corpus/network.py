"""Attacks over the network and other channels to processes outside. Their targets listen on this machine alone."""

from sage_jax.sandbox.corpus.attack import CRASHED, ERROR, OK, TIMEOUT, attack

NETWORK = (
    attack("tcp", "import socket\nsocket.create_connection(('127.0.0.1', input['tcp']), 2).sendall(b'x')", ERROR),
    attack("tcp6", "import socket\nsocket.create_connection(('::1', input['tcp']), 2).sendall(b'x')", ERROR),
    attack(
        "tcp_mapped",
        "import socket\ns = socket.socket(socket.AF_INET6)\ns.connect(('::ffff:127.0.0.1', input['tcp']))",
        ERROR,
    ),
    attack(
        "tcp_any_address", "import socket\nsocket.create_connection(('0.0.0.0', input['tcp']), 2).sendall(b'x')", ERROR
    ),
    attack(
        "tcp_fast_open",
        """
        import socket
        s = socket.socket()
        s.sendto(b'x', socket.MSG_FASTOPEN, ('127.0.0.1', input['tcp']))
        """,
        ERROR,
    ),
    attack(
        "tcp_fast_open_option",
        """
        import socket
        s = socket.socket()
        s.setsockopt(socket.IPPROTO_TCP, 30, 1)
        s.connect(('127.0.0.1', input['tcp']))
        s.sendall(b'x')
        """,
        ERROR,
    ),
    attack("multipath_tcp", "import socket\nsocket.socket(2, 1, 262).connect(('127.0.0.1', input['tcp']))", ERROR),
    attack(
        "tcp_not_blocking",
        """
        import socket, time
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(('127.0.0.1', input['tcp']))
        time.sleep(.3)
        """,
        OK,
        ERROR,
    ),
    attack("udp", "import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', input['udp']))", OK, ERROR),
    attack(
        "udp_connected",
        "import socket\ns = socket.socket(2, 2)\ns.connect(('127.0.0.1', input['udp']))\ns.send(b'x')",
        OK,
        ERROR,
    ),
    attack(
        "udp_message",
        "import socket\nsocket.socket(2, 2).sendmsg([b'x'], [], 0, ('127.0.0.1', input['udp']))",
        OK,
        ERROR,
    ),
    attack("udp_light", "import socket\nsocket.socket(2, 2, 136).sendto(b'x', ('127.0.0.1', input['udp']))", OK, ERROR),
    attack(
        "udp_broadcast",
        """
        import socket
        s = socket.socket(2, 2)
        s.setsockopt(1, 6, 1)
        s.sendto(b'x', ('127.255.255.255', input['udp']))
        """,
        OK,
        ERROR,
    ),
    attack("raw_socket", "import socket\nsocket.socket(2, 3, 1).sendto(b'x' * 8, ('127.0.0.1', 0))", ERROR),
    attack(
        "ping_socket", "import socket\nsocket.socket(2, 2, 1).sendto(b'\\x08' + bytes(7), ('127.0.0.1', 0))", OK, ERROR
    ),
    attack("packet_socket", "import socket\nsocket.socket(17, 3, 0x0300)", ERROR),
    attack("netlink", "import socket\nsocket.socket(16, 3, 0)", ERROR),
    attack("hypervisor_socket", "import socket\nsocket.socket(40, 1).connect((2, 1))", ERROR),
    attack("crypto_socket", "import socket\nsocket.socket(38, 5).bind(('hash', 'sha256'))", ERROR),
    attack("sctp", "import socket\nsocket.socket(2, 1, 132).connect(('127.0.0.1', input['tcp']))", ERROR),
    attack("unix_socket", "import socket\ns = socket.socket(1)\ns.connect(input['unix'])\ns.sendall(b'x')", ERROR),
    attack(
        "abstract_socket",
        "import socket\ns = socket.socket(1)\ns.connect('\\0' + input['token'])\ns.sendall(b'x')",
        ERROR,
    ),
    attack(
        "http", "import urllib.request\nurllib.request.urlopen(f\"http://127.0.0.1:{input['tcp']}/\", timeout=2)", ERROR
    ),
    attack(
        "http_with_curl",
        "import subprocess\nsubprocess.run(['curl', '-m', '2', f\"http://127.0.0.1:{input['tcp']}/\"], check=True)",
        ERROR,
    ),
    attack(
        "shell_tcp",
        """
        import subprocess
        subprocess.run(['bash', '-c', f"echo x > /dev/tcp/127.0.0.1/{input['tcp']}"], check=True)
        """,
        ERROR,
    ),
    attack(
        "name_lookup", "import socket\nresult = socket.gethostbyname('localhost.localdomain.example')", ERROR, TIMEOUT
    ),
    attack("docker_daemon", "import socket\ns = socket.socket(1)\ns.connect('/var/run/docker.sock')", ERROR),
    attack("session_bus", "import socket\ns = socket.socket(1)\ns.connect('/run/dbus/system_bus_socket')", ERROR),
    attack(
        "inherited_descriptors",
        """
        import os
        result = []
        for fd in range(3, 1024):
            try:
                os.lseek(fd, 0, 0)
                result.append(os.read(fd, 4096).decode(errors='replace'))
            except OSError:
                pass
        """,
        OK,
        TIMEOUT,
    ),
    attack(
        "io_uring",
        """
        import ctypes
        assert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(256)) < 0
        """,
        OK,
        CRASHED,
    ),
    attack(
        "bpf",
        "import ctypes\nassert ctypes.CDLL(None).syscall(321, 0, ctypes.create_string_buffer(256), 128) < 0",
        OK,
        CRASHED,
    ),
    attack("kernel_keys", "import ctypes\nassert ctypes.CDLL(None).syscall(250, 0, -3, 0) < 0", OK, CRASHED),
    attack("message_queue", "import ctypes\nassert ctypes.CDLL(None).syscall(68, 4711, 0o1777) < 0", OK, CRASHED),
    attack("listen_outside", "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()", OK, ERROR),
)
