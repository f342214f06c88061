"""Network namespaces: entering one for a moment, making a named one, numbering them.

A namespace is given by a path (``/run/netns/x``, ``/proc/PID/ns/net``); ``None`` is one's own. Entering
concerns the calling thread alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from testbed.process import BIND, call, mount, unmount, unshare

_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
NAMED = Path("/run/netns")
"""Where ``ip netns`` looks too, so that a kept run can be inspected with it."""

_IPV6 = Path("/proc/sys/net/ipv6/conf")


def enter(netns: str) -> None:
    """Move the calling thread into a namespace for good. Raises OSError."""
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call("setns", descriptor, _NEWNET)
    finally:
        os.close(descriptor)


def without_ipv6(*names: str) -> None:
    """Keep devices of the calling thread's namespace (``all``, ``default``: also those to come) from IPv6's chatter."""
    for name in names:
        switch = _IPV6 / name / "disable_ipv6"
        if switch.exists():
            switch.write_text("1")


@contextmanager
def inside(netns: str | None) -> Iterator[None]:
    """Be in a namespace for the length of a ``with`` block. Raises OSError."""
    if netns is None:
        yield
        return
    home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(netns)
        try:
            yield
        finally:
            call("setns", home, _NEWNET)
    finally:
        os.close(home)


def leave_for_new() -> None:
    """Move the calling thread into a fresh namespace that ends with it. Raises OSError."""
    unshare(_NEWNET)


def path_of(name: str) -> str:
    """Where the namespace called ``name`` is, or would be."""
    return str(NAMED / name)


def stands(path: str) -> bool:
    """Whether there is a namespace at ``path``: a file that is left of one is none."""
    return os.path.ismount(path)


def make(name: str) -> str:
    """Make a namespace that stays until it is removed; returns its path. Raises OSError."""
    NAMED.mkdir(parents=True, exist_ok=True)
    path = NAMED / name
    path.touch(mode=0o444, exist_ok=False)
    failure: list[OSError] = []

    def hold() -> None:
        try:
            leave_for_new()
            mount(OWN, path, None, BIND)
        except OSError as error:
            failure.append(error)

    # A thread of its own: it alone changes namespace, and it ends when the mount holds the new one.
    thread = Thread(target=hold, name="namespace")
    thread.start()
    thread.join()
    if failure:
        path.unlink()
        raise failure[0]
    return str(path)


def identity(path: str | Path) -> tuple[int, int]:
    """Which namespace, of any kind, ``path`` leads to: the same for all paths to it. Raises OSError."""
    found = os.stat(path)  # noqa: PTH116 - of strings, too
    return found.st_dev, found.st_ino


def inhabitants(netns: str) -> list[int]:
    """The processes in a namespace, this one excepted."""
    try:
        wanted = identity(netns)
    except FileNotFoundError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or is not to be looked into
            if identity(entry / "ns/net") == wanted:
                found.append(int(entry.name))
    return found


def remove(name: str) -> bool:
    """Remove what ``make`` made, and end who is in it; False where there is nothing of that name.

    A process that was left in it would keep the namespace and its devices. Raises OSError.
    """
    path = NAMED / name
    if not path.exists():
        return False
    for pid in inhabitants(str(path)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        unmount(path)
    except OSError:
        if os.path.ismount(path):
            raise
    path.unlink(missing_ok=True)
    return True
