"""Becoming a node's process: ``python -m testbed.fabric.enter --netns PATH --parent PID [--copies FD] -- COMMAND…``.

Enters the namespace, gives up every capability for good, sees to it that it dies with its parent, and
becomes the command. It runs as the owner of the package, so that without capabilities it can still read it;
where only one user is known it stays that user, who could read it before.
The command's environment is this process's, but for what ``ENVIRONMENT`` says: what this program needs in order to run
need not be what the command is to find.
The parent is the *thread* that started it: when that thread ends, so does this process.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.fabric.copies import submit
from testbed.links.namespaces import enter
from testbed.process import PACKAGE, die_with, module_command, prctl

_libc = ctypes.CDLL(None, use_errno=True)
_DROP_BOUNDING, _SET_SECUREBITS, _NO_NEW_PRIVILEGES = 24, 28, 38
_AMBIENT, _CLEAR_ALL = 47, 4
_NOROOT_LOCKED = 0b11
_CAPABILITIES_VERSION_3 = 0x20080522
ENVIRONMENT = "NARROWS_ENVIRONMENT"
"""The variable that says how the command's environment differs: by name, as JSON; null: not there."""
_NOT_ABLE, _NOT_FOUND = 126, 127
"""What shells say of a command that cannot be started, and of one that is not there."""
_LAST = Path("/proc/sys/kernel/cap_last_cap")
_USERS = Path("/proc/self/uid_map")


def command_in(
    netns: str, parent: int, command: Sequence[str], copies: int | None = None
) -> list[str]:
    """The command line that runs ``command`` in a namespace without any privilege.

    ``copies``: a descriptor for ``testbed.fabric.copies.submit``, which the process must inherit.
    """
    options = ["--netns", netns, "--parent", str(parent)]
    options += [] if copies is None else ["--copies", str(copies)]
    return module_command("testbed.fabric.enter", *options, "--", *command)


def drop_privileges() -> None:
    """Give up every capability, now and for all programs to come. Raises OSError."""
    for capability in range(int(_LAST.read_text()) + 1):
        prctl(_DROP_BOUNDING, capability)
    prctl(_SET_SECUREBITS, _NOROOT_LOCKED)
    prctl(_AMBIENT, _CLEAR_ALL)
    owner = PACKAGE.stat()
    if owner.st_uid != os.geteuid() and is_mapped(owner.st_uid):
        os.setgroups([])
        os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
        os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
    header = struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0)
    if _libc.capset(header, bytes(24)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")
    prctl(_NO_NEW_PRIVILEGES, 1)


def is_mapped(user: int, rows: str | None = None) -> bool:
    """Whether a process here can become ``user``: a user namespace may know one user only.

    ``rows`` are as in ``/proc/self/uid_map``, which is read when none are given.
    """
    text = _USERS.read_text() if rows is None else rows
    ranges = (tuple(map(int, row.split())) for row in text.splitlines())
    return any(first <= user < first + count for first, _, count in ranges)


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the command."""
    parser = argparse.ArgumentParser(prog="testbed.fabric.enter")
    parser.add_argument("--netns", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--copies", type=int)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    die_with(options.parent)  # before its namespace goes too
    enter(options.netns)
    drop_privileges()
    die_with(options.parent)  # another user's process is not told any more
    if options.copies is not None:
        submit(options.copies)
    for name, value in json.loads(os.environ.pop(ENVIRONMENT, "{}")).items():
        os.environ.pop(name, None)
        os.environ.update({} if value is None else {name: value})
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        sys.stderr.write(f"testbed: {options.command[0]}: {error.strerror}\n")
        sys.exit(_NOT_FOUND if error.errno == errno.ENOENT else _NOT_ABLE)


if __name__ == "__main__":
    main()
