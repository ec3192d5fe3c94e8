"""A seccomp filter that refuses the system calls no program here needs and that have let others out of a sandbox.

Namespaces hide files and networks, but leave the kernel's whole surface open: keyrings, BPF, io_uring, and sockets of
families that no network namespace covers (AF_VSOCK reaches the host of a virtual machine). The filter is inherited by
every child and cannot be taken off. Refused calls fail with an error number, they do not kill: a program that only
tries is none the worse.
"""

import ctypes
import platform
import struct

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
_LOCAL, _INTERNET = 1, (2, 10)  # AF_UNIX; AF_INET, AF_INET6
_PROTOCOLS = (0, 6, 17)  # the family's own, TCP, UDP: Landlock's rules for TCP do not see MPTCP
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*

# name: (x86-64, arm64); None where the architecture has no such call.
_REFUSED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),  # memory outside the address-space limit, like the three System V calls below
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
# Refused only where the file system cannot be made read-only: Landlock does not watch what these change.
_METADATA = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
# A TCP connection can be opened by the first send, where a sandbox that watches connect() does not see it.
# name: (x86-64, arm64), which argument holds the flags
_SENDS = {"sendto": ((44, 206), 3), "sendmsg": ((46, 211), 2), "sendmmsg": ((307, 269), 3)}
_FAST_OPEN_FLAG, _TCP, _FAST_OPEN_OPTION = 0x20000000, 6, 30
# architecture: (AUDIT_ARCH, column above, socket, clone, clone3, setsockopt)
_ARCHITECTURES = {
    "x86_64": (0xC000003E, 0, 41, 56, 435, 54),
    "aarch64": (0xC00000B7, 1, 198, 220, 435, 208),
}

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH, _ARGUMENTS = 0, 4, (16, 24, 32, 40)  # offsets in struct seccomp_data; of arguments, the low half
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2


def instructions(machine: str, *, metadata: bool, network: bool) -> list[tuple[int, int, int, int]]:
    """Returns the BPF program as (code, jump if true, jump if false, value).

    Args:
      machine: as `platform.machine()` names it.
      metadata: whether owners, modes, times and attributes of files may be changed.
      network: whether there may be internet sockets at all.

    Raises:
      RuntimeError: the architecture is not known here.
    """
    if machine not in _ARCHITECTURES:
        raise RuntimeError(f"no seccomp filter for {machine}; known: {', '.join(_ARCHITECTURES)}")
    arch, column, socket_nr, clone_nr, clone3_nr, option_nr = _ARCHITECTURES[machine]
    refuse, allow = (_RETURN, 0, 0, _ERRNO | EPERM), (_RETURN, 0, 0, _ALLOW)
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
        (_JUMP_ABOVE, 0, 1, 0x40000000),  # x32 calls reach the same kernel code under other numbers
        (_RETURN, 0, 0, _ERRNO | ENOSYS),
    ]
    for numbers in [*_REFUSED.values(), *([] if metadata else _METADATA.values())]:
        number = numbers[column]
        if number is not None:
            program += [(_JUMP_EQUAL, 0, 1, number), refuse]
    # clone3 hides its flags behind a pointer; libc falls back to clone when it seems not to exist.
    program += [(_JUMP_EQUAL, 0, 1, clone3_nr), (_RETURN, 0, 0, _ERRNO | ENOSYS)]
    flagged = [(clone_nr, 0, _NEW_NAMESPACES), *((nrs[column], at, _FAST_OPEN_FLAG) for nrs, at in _SENDS.values())]
    for call, position, flags in flagged:
        program += [(_JUMP_EQUAL, 0, 4, call), (_LOAD, 0, 0, _ARGUMENTS[position])]
        program += [(_JUMP_ANY_BIT, 0, 1, flags), refuse, allow]
    program += [(_JUMP_EQUAL, 0, 6, option_nr), (_LOAD, 0, 0, _ARGUMENTS[1]), (_JUMP_EQUAL, 0, 3, _TCP)]
    program += [(_LOAD, 0, 0, _ARGUMENTS[2]), (_JUMP_EQUAL, 0, 1, _FAST_OPEN_OPTION), refuse, allow]
    other = (_RETURN, 0, 0, _ERRNO | EAFNOSUPPORT)
    program += [(_JUMP_EQUAL, 1, 0, socket_nr), allow, (_LOAD, 0, 0, _ARGUMENTS[0])]
    program += [(_JUMP_EQUAL, 0, 1, _LOCAL), allow]
    if not network:
        return [*program, other]
    program += [(_JUMP_EQUAL, 2, 0, _INTERNET[0]), (_JUMP_EQUAL, 1, 0, _INTERNET[1]), other]
    program.append((_LOAD, 0, 0, _ARGUMENTS[2]))
    for protocol in _PROTOCOLS:
        program += [(_JUMP_EQUAL, 0, 1, protocol), allow]
    return [*program, other]


def install(*, metadata: bool, network: bool) -> None:
    """Puts the filter on this process and all it starts from now on; arguments as for `instructions`.

    Raises:
      OSError: the kernel refused.
    """
    program = instructions(platform.machine(), metadata=metadata, network=network)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER_MODE, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
