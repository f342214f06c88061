"""Becoming a node's process: ``python -m testbed.fabric.node_launcher --netns PATH --parent PID --
COMMAND…``.

Enters the network namespace and a view of the host's files that is read-only, becomes the nodes'
user, gives up every capability for good, sees to it that it dies with its parent, and becomes the
command. The parent is the *thread* that started it: when that thread ends, so does this process.

Having programs of any Python find this package, and nothing else that happens to lie beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import MachineError
from testbed.fabric.file_view import Account, account, check, lay, programs
from testbed.links.network.namespaces import enter
from testbed.process import (
    NEW_MOUNTS,
    NEW_USERS,
    PACKAGE,
    call,
    die_with,
    gain_no_privileges,
    module_command,
    prctl,
    restore_open_files,
    unshare,
)

_DROP_BOUNDING, _SET_SECUREBITS = 24, 28
_AMBIENT, _CLEAR_ALL = 47, 4
_SET_SECCOMP, _SECCOMP_FILTER = 22, 2
_NOROOT_LOCKED = 0b11
_CAPABILITIES_VERSION_3 = 0x20080522
_NOT_ABLE, _NOT_FOUND = 126, 127
"""Exit codes of shells for a command that cannot be started, and for one not found."""
_LAST = Path("/proc/sys/kernel/cap_last_cap")

_SET_ID = 0o6000
_CREATES = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)
_MACHINE_AT, _NUMBER_AT, _ARGUMENTS_AT, _ARGUMENT_BYTES = 4, 0, 16, 8
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_FOREIGN = 0x40000000
"""Numbers from here on are those of another interface of the same machine (x32)."""
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Calls(NamedTuple):
    """System calls of a machine (include/uapi/linux/audit.h), each with the argument that is a
    mode; of those that open files, the argument before it says whether a file is made. ``keys``:
    add_key, request_key and keyctl. ``worlds``: clone and unshare, whose first argument says which
    namespaces are made. ``socket``: its first argument is a family."""

    machine: int
    modes: dict[int, int]
    opens: dict[int, int]
    keys: tuple[int, ...]
    worlds: tuple[int, ...]
    socket: int


_KNOWN = {
    "x86_64": _Calls(
        0xC000003E,
        {90: 1, 91: 1, 268: 2, 452: 2, 133: 1, 259: 2, 85: 1},
        {2: 2, 257: 3},
        (248, 249, 250),
        (56, 272),
        41,
    ),
    "aarch64": _Calls(
        0xC00000B7, {52: 1, 53: 2, 452: 2, 33: 2}, {56: 3}, (217, 218, 219), (220, 97), 198
    ),
}
_RINGS, _WITHOUT = 425, (437, 435)
"""io_uring_setup; openat2 and clone3. They take what matters from memory, where no filter looks: as
if the kernel did not have them."""


def command_in(netns: str, parent: int, command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` in a namespace without any privilege."""
    options = ["--netns", netns, "--parent", str(parent)]
    return module_command("testbed.fabric.node_launcher", *options, "--", *command)


def drop_privileges(whose: Account | None) -> None:
    """Become ``whose``, and give up every capability, now and for all programs to come. Raises
    OSError.

    Files with a set-user-id or set-group-id bit cannot be made any more either: where a folder's
    files are shown as this user's they belong to its owner on the disk. Nor can user namespaces:
    who is root of one gives such a file capabilities, which on the disk are the owner's to give.
    Nor can the kernel's keys be reached: of whoever started the testbed, the session's would go on
    to every process. Nor sockets of virtual machines (``AF_VSOCK``), which lead from any network
    namespace to the host's, and to all others.
    """
    for capability in range(int(_LAST.read_text()) + 1):
        prctl(_DROP_BOUNDING, capability)
    prctl(_SET_SECUREBITS, _NOROOT_LOCKED)
    prctl(_AMBIENT, _CLEAR_ALL)
    if whose is not None:
        os.setgroups([])
        os.setresgid(whose.group, whose.group, whose.group)
        os.setresuid(whose.user, whose.user, whose.user)
    call("capset", struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0), bytes(24))
    gain_no_privileges()
    _forbid(set_id=whose is not None)


def execute(command: Sequence[str]) -> None:
    """Become ``command``; where that is impossible, say so and end as a shell would."""
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"testbed: {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND if error.errno == errno.ENOENT else _NOT_ABLE)


def _forbid(*, set_id: bool) -> None:
    """Have the kernel refuse keys, sockets of virtual machines and, with ``set_id``, making files
    that run as others."""
    calls = _KNOWN.get(platform.machine())
    if calls is None:
        if not set_id:
            return
        raise OSError(
            errno.ENOSYS, f"the numbers of system calls on {platform.machine()} are not known"
        )
    program = b"".join(struct.pack("=HBBI", *step) for step in _filter(calls, set_id))
    room = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(room))
    )
    prctl(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.addressof(head))


def _filter(calls: _Calls, set_id: bool) -> Iterator[tuple[int, int, int, int]]:
    """Instructions (linux/filter.h): code, steps to skip if true and if not, operand."""
    denied, unknown = _FAIL | errno.EPERM, _FAIL | errno.ENOSYS
    yield from ((_LOAD, 0, 0, _MACHINE_AT), (_EQUAL, 1, 0, calls.machine), (_RETURN, 0, 0, unknown))
    yield from ((_LOAD, 0, 0, _NUMBER_AT), (_AT_LEAST, 0, 1, _FOREIGN), (_RETURN, 0, 0, unknown))
    for number in (*calls.keys, _RINGS, *(_WITHOUT if set_id else ())):
        yield from ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, unknown))
    yield from ((_EQUAL, 0, 4, calls.socket), (_LOAD, 0, 0, _argument(0)))
    yield from ((_EQUAL, 0, 1, socket.AF_VSOCK), (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT))
    yield (_RETURN, 0, 0, _ALLOW)
    if not set_id:
        yield (_RETURN, 0, 0, _ALLOW)
        return
    for number in calls.worlds:
        yield (_EQUAL, 0, 4, number)
        yield from _without(0, NEW_USERS, denied)
    for number, mode in calls.modes.items():
        yield (_EQUAL, 0, 4, number)
        yield from _without(mode, _SET_ID, denied)
    for number, mode in calls.opens.items():
        yield (_EQUAL, 0, 6, number)
        yield from ((_LOAD, 0, 0, _argument(mode - 1)), (_ANY_BIT, 0, 3, _CREATES))
        yield from _without(mode, _SET_ID, denied)
    yield (_RETURN, 0, 0, _ALLOW)


def _without(number: int, bits: int, denied: int) -> Iterator[tuple[int, int, int, int]]:
    """Refuse a call with any of ``bits`` in an argument, and let it pass without."""
    yield from ((_LOAD, 0, 0, _argument(number)), (_ANY_BIT, 0, 1, bits))
    yield from ((_RETURN, 0, 0, denied), (_RETURN, 0, 0, _ALLOW))


def _argument(number: int) -> int:
    """Where its lower half is, on a machine that puts it first."""
    return _ARGUMENTS_AT + _ARGUMENT_BYTES * number


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the command."""
    parser = argparse.ArgumentParser(prog="testbed.fabric.node_launcher")
    parser.add_argument("--netns", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    die_with(options.parent)  # before its namespace goes too
    enter(options.netns)
    unshare(NEW_MOUNTS)
    whose, shown = account(), programs(os.environ)
    try:
        lay(shown, whose)
        drop_privileges(whose)
        check(shown)
    except MachineError as error:
        sys.exit(f"testbed: {error}")
    die_with(options.parent)  # another user's process is not told any more
    restore_open_files()
    os.environ["TMPDIR"] = "/tmp"  # the host's may be out of sight
    execute(options.command)


_MODULE = '''"""The package ``testbed``, from where it is installed."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

_spec = spec_from_file_location("testbed", {init!r}, submodule_search_locations=[{package!r}])
sys.modules["testbed"] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["testbed"])
'''


def offer(folder: Path) -> Path:
    """Return what to put last in ``PYTHONPATH``: a folder below ``folder`` with only a package that
    becomes this one.

    The package's own folder would not do: of a checkout it has other packages, of an environment
    all libraries.
    """
    offered = folder / ".python"
    if not offered.is_dir():
        for new in (offered, offered / "testbed"):
            new.mkdir()
            new.chmod(0o755)
        module = offered / "testbed" / "__init__.py"
        module.write_text(_MODULE.format(init=str(PACKAGE / "__init__.py"), package=str(PACKAGE)))
        module.chmod(0o644)
    return offered


if __name__ == "__main__":
    main()
