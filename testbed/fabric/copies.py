"""Having it told when a process reads or writes another's memory: the part of whoever is watched.

Processes in different network namespaces may share the namespace of process ids, and then the kernel copies from one
to the other without a network (process_vm_readv(2)). A filter on those two calls alone has every one of them wait until
whoever holds its listener lets it go on (seccomp_unotify(2)). It holds for all programs to come.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)
_SET_FILTER = 1
_SPECULATE, _NEW_LISTENER, _ONLY_KILLS = 4, 8, 32
"""Flags: without the costly mitigation that some kernels add to filters; with a listener; no other signal interrupts a
call that is being looked at (Linux 5.19), so that none is told of twice."""
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4
_TELL, _ALLOW = 0x7FC00000, 0x7FFF0000
_OLDEST = (5, 5)
"""The first Linux in which a call that was told of can go on."""
_WHY_BYTES = 512


class _Calls(NamedTuple):
    """Numbers of system calls, and of the machine they belong to (include/uapi/linux/audit.h)."""

    machine: int
    seccomp: int
    read: int
    write: int


_KNOWN = {
    "x86_64": _Calls(0xC000003E, 317, 310, 311),
    "aarch64": _Calls(0xC00000B7, 277, 270, 271),
}


def names_of_calls() -> dict[int, str]:
    """The watched system calls of this machine, by their numbers."""
    calls = _KNOWN.get(platform.machine())
    if calls is None:
        return {}
    return {calls.read: "process_vm_readv", calls.write: "process_vm_writev"}


def submit(channel: int) -> None:
    """Have this process, and all it becomes and starts, watched by whoever is at the other end of a Unix socket.

    The listener is sent there, or why there is none. The socket is closed. Privileges must have been given up.
    """
    with socket.socket(fileno=channel) as told:
        try:
            listener = _install()
        except OSError as error:
            told.send((error.strerror or str(error)).encode()[:_WHY_BYTES])
            return
        try:
            socket.send_fds(told, [b"+"], [listener])
        finally:
            os.close(listener)


def receive(channel: socket.socket) -> int | str | None:
    """The listener that ``submit`` sent, or why there is none; None when nothing was sent at all."""
    said, descriptors, _, _ = socket.recv_fds(channel, _WHY_BYTES, 1)
    if descriptors:
        return descriptors[0]
    return said.decode(errors="replace") or None


def _install() -> int:
    """Raises OSError where machine, kernel or container cannot do it."""
    calls = _KNOWN.get(platform.machine())
    if calls is None:
        raise OSError(0, f"the numbers of system calls on {platform.machine()} are not known")
    release = tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit())
    if release < _OLDEST:
        raise OSError(0, "Linux 5.5 or newer is needed")
    program = _program(calls)
    room = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(room))
    for more in (_ONLY_KILLS, 0):
        flags = _NEW_LISTENER | _SPECULATE | more
        listener = int(_libc.syscall(calls.seccomp, _SET_FILTER, flags, head))
        if listener >= 0:
            return listener
    code = ctypes.get_errno()
    raise OSError(code, f"seccomp: {os.strerror(code)}")


def _program(calls: _Calls) -> bytes:
    """The filter, instruction by instruction (linux/filter.h): code, steps if true and if not, operand."""
    return b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, _MACHINE_AT),
            (_EQUAL, 0, 4, calls.machine),
            (_LOAD, 0, 0, _NUMBER_AT),
            (_EQUAL, 1, 0, calls.read),
            (_EQUAL, 0, 1, calls.write),
            (_RETURN, 0, 0, _TELL),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
