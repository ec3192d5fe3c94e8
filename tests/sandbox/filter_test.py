import pytest

from sage_jax.sandbox.guest import filter as seccomp

ALLOW, EPERM = 0x7FFF0000, 0x00050000 | 1
X86, ARM = "x86_64", "aarch64"
ARCH = {X86: 0xC000003E, ARM: 0xC00000B7}


def evaluate(program, arch: int, nr: int, *arguments: int) -> int:
    """Runs a BPF program as the kernel would; an independent reading of the four instructions it is made of."""
    memory = {0: nr, 4: arch} | {16 + 8 * i: value & 0xFFFFFFFF for i, value in enumerate(arguments)}
    accumulator, at = 0, 0
    while True:
        code, true, false, value = program[at]
        at += 1
        if code == 0x20:
            accumulator = memory.get(value, 0)
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            at += true if holds else false


def answer(nr: int, *arguments: int, machine: str = X86, metadata: bool = True, network: bool = False) -> int:
    program = seccomp.instructions(machine, metadata=metadata, network=network)
    return evaluate(program, ARCH[machine], nr, *arguments)


@pytest.mark.parametrize(("machine", "read", "ptrace"), [(X86, 0, 101), (ARM, 63, 117)])
def test_calls_are_told_apart(machine: str, read: int, ptrace: int):
    assert answer(read, machine=machine) == ALLOW
    assert answer(ptrace, machine=machine) == EPERM


def test_another_architecture_is_killed():
    program = seccomp.instructions(X86, metadata=True, network=True)
    assert evaluate(program, ARCH[ARM], 0) == 0x80000000


def test_the_x32_numbers_do_not_exist():
    assert answer(0x40000000 + 101) == 0x00050000 | 38


@pytest.mark.parametrize(("family", "network", "allowed"), [(1, False, True), (2, False, False), (2, True, True)])
def test_internet_sockets_come_with_a_network(family: int, network: bool, allowed: bool):
    assert (answer(41, family, network=network) == ALLOW) == allowed


@pytest.mark.parametrize(
    ("family", "network"), [(family, network) for family in (16, 17, 38, 40, 43, 44) for network in (True, False)]
)
def test_no_other_family(family: int, network: bool):
    assert answer(41, family, network=network) == 0x00050000 | 97


def test_no_other_protocol():
    for protocol, allowed in ((0, True), (6, True), (17, True), (262, False), (132, False), (136, False), (1, False)):
        assert (answer(41, 2, 1, protocol, network=True) == ALLOW) == allowed, protocol


def test_threads_may_be_made_but_no_namespaces():
    thread = 0x00000100 | 0x00000800 | 0x00010000
    assert answer(56, thread) == ALLOW
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(56, thread | bit) == EPERM, hex(bit)


@pytest.mark.parametrize(("nr", "flags_at"), [(44, 3), (46, 2), (307, 3)])
def test_a_send_opens_no_connection(nr: int, flags_at: int):
    arguments = [7, 7, 7, 7]
    arguments[flags_at] = 0x4000
    assert answer(nr, *arguments, network=True) == ALLOW
    arguments[flags_at] = 0x20004000
    assert answer(nr, *arguments, network=True) == EPERM


def test_nor_does_an_option():
    assert answer(54, 3, 6, 30, network=True) == EPERM
    assert answer(54, 3, 6, 1, network=True) == ALLOW
    assert answer(54, 3, 1, 30, network=True) == ALLOW


def test_metadata_is_refused_where_asked():
    assert answer(90, metadata=True) == ALLOW
    assert answer(90, metadata=False) == EPERM


def test_an_unknown_architecture_is_named():
    with pytest.raises(RuntimeError, match="no seccomp filter for vax; known: x86_64, aarch64"):
        seccomp.instructions("vax", metadata=True, network=True)
