"""Network namespaces: entering one for a moment, making a named one, and how TCP and multicast are
set in each.

A namespace is given by a path (``/run/netns/x``, ``/proc/PID/ns/net``); ``None`` is one's own.
Entering concerns the calling thread alone.

What one algorithm's connections have learned about a link must not be where the next one's begin.
And a whole message must fit into the kernel at either end: else a link falls silent whenever the
process that should hand over the rest, or make room for it, waits for a processor, which it shares
with nodes that compute already.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from testbed.errors import MachineError
from testbed.process import BIND, call, mount, unmount, unshare

T = TypeVar("T")
_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
NAMED = Path("/run/netns")
"""Where ``ip netns`` looks too, so that a kept run can be inspected with it."""

_IPV6 = Path("/proc/sys/net/ipv6/conf")

SETTINGS = {
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_rmem": "4096 4194304 16777216",
    "net.ipv4.tcp_wmem": "4096 4194304 16777216",
    # A node may be in many multicast groups, and says so several times: it is not asked again.
    # Bridges say nothing.
    "net.ipv4.igmp_max_memberships": "1024",
    "net.ipv4.igmp_qrv": "3",
    "net.ipv4.conf.default.igmpv3_unsolicited_report_interval": "100",
    "net.ipv4.igmp_link_local_mcast_reports": "0",
}
"""Settings of a namespace, as sysctl(8) calls them; also in ``compose/base.yaml``."""

FILTERS = ("iptables", "ip6tables", "arptables")
"""Filters that bridges hand packets to where br_netfilter is loaded: we use none."""


@contextmanager
def opened(netns: str) -> Iterator[int]:
    """A descriptor of a namespace for the length of a ``with`` block. Raises OSError."""
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def enter(netns: str) -> None:
    """Move the calling thread into a namespace for good. Raises OSError."""
    with opened(netns) as descriptor:
        call("setns", descriptor, _NEWNET)


def without_ipv6(*names: str) -> None:
    """Disable IPv6 on devices of this namespace (``all``, ``default``: also on later ones)."""
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
    with opened(OWN) as home:
        enter(netns)
        try:
            yield
        finally:
            call("setns", home, _NEWNET)


def leave_for_new() -> None:
    """Move the calling thread into a fresh namespace that ends with it. Raises OSError."""
    unshare(_NEWNET)


def apart(action: Callable[[], T]) -> T:
    """Run ``action`` in a thread whose namespace and priority end with it."""
    with ThreadPoolExecutor(1) as own:
        return own.submit(action).result()


def path_of(name: str) -> str:
    """Return where the namespace called ``name`` is, or would be."""
    return str(NAMED / name)


def stands(path: str) -> bool:
    """Return whether there is a namespace at ``path``: a file that is left of one is none."""
    return os.path.ismount(path)


def make(name: str) -> str:
    """Make a namespace that stays until it is removed; returns its path. Raises OSError."""
    NAMED.mkdir(parents=True, exist_ok=True)
    path = NAMED / name
    path.touch(mode=0o444, exist_ok=False)

    def hold() -> None:
        leave_for_new()
        mount(OWN, path, None, BIND)

    try:
        apart(hold)
    except OSError:
        path.unlink()
        raise
    return str(path)


def identity(path: str | Path) -> tuple[int, int]:
    """The namespace that ``path`` leads to, the same for all its paths. Raises OSError."""
    state = os.stat(path)  # noqa: PTH116 - of strings, too
    return state.st_dev, state.st_ino


def inhabitants(netns: str) -> list[int]:
    """The processes in a namespace, this one excepted."""
    try:
        wanted = identity(netns)
    except FileNotFoundError:
        return []
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or is not to be looked into
            if identity(entry / "ns/net") == wanted:
                pids.append(int(entry.name))
    return pids


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


def settle() -> None:
    """Set the calling thread's namespace up, before any socket is made in it."""
    for name, value in SETTINGS.items():
        _file(name).write_text(value)
    for name in FILTERS:
        if (file := _file(f"net.bridge.bridge-nf-call-{name}")).exists():
            file.write_text("0")


def _file(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def setting(name: str, netns: str | None = None) -> str:
    """A setting that holds in a namespace, as sysctl(8) calls it."""
    with inside(netns):
        return _file(name).read_text().strip()


def available_congestion(netns: str | None = None) -> tuple[str, ...]:
    """The congestion controls that the kernel has loaded."""
    return tuple(setting("net.ipv4.tcp_available_congestion_control", netns).split())


def require_congestion(congestion: str) -> None:
    """Raises MachineError for a congestion control that the kernel neither has nor loads for this
    process.

    A socket is asked: that takes no privilege, and loads what root may have loaded.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        except OSError as error:
            if error.errno != errno.EPERM:  # known, and routes may have it whoever may select it
                raise unknown(congestion, None, error) from error


def unknown(congestion: str | None, netns: str | None, error: OSError) -> MachineError:
    """The error for a congestion control that the kernel refused."""
    known = available_congestion(netns)
    return MachineError(
        f"this kernel does not offer the congestion control {congestion!r} ({error.strerror})",
        fix=f"Available: {', '.join(known)}; others may come with 'modprobe tcp_{congestion}'.",
    )
