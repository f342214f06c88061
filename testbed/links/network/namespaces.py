"""Network namespaces: entering one for a moment, making a named one, and the kernel's settings of
TCP and multicast in each. Congestion control is a route's (``devices.py``).

A namespace is given by a path (``/run/netns/x``, ``/proc/PID/ns/net``); ``None`` is one's own.
Entering concerns the calling thread alone.

What one algorithm's connections have learned about a link must not be where the next one's begin.
And a whole message must fit into the kernel at either end: else a link falls silent whenever the
process that should hand over the rest, or make room for it, waits for a processor, which it shares
with nodes that compute already.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from testbed.errors import MachineError
from testbed.process import BIND, NEW_NETWORK, call, mount, unmount, unshare

T = TypeVar("T")
OWN = "/proc/thread-self/ns/net"
NAMED = Path("/run/netns")
"""Where ``ip netns`` looks too, so that a kept run can be inspected with it."""

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

UNUSED = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    # Bridges hand packets to these filters where br_netfilter is loaded.
    "net.bridge.bridge-nf-call-iptables": "0",
    "net.bridge.bridge-nf-call-ip6tables": "0",
    "net.bridge.bridge-nf-call-arptables": "0",
}
"""Settings that switch off what we do not use, where the kernel has it."""


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
        call("setns", descriptor, NEW_NETWORK)


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
            call("setns", home, NEW_NETWORK)


def apart(action: Callable[[], T]) -> T:
    """Run ``action`` in a thread whose namespace and priority end with it."""
    with ThreadPoolExecutor(1) as own:
        return own.submit(action).result()


def path_of(name: str) -> str:
    """Return where the namespace called ``name`` is, or would be."""
    return str(NAMED / name)


def make(name: str) -> str:
    """Make a namespace that stays until it is removed; returns its path. Raises OSError."""
    NAMED.mkdir(parents=True, exist_ok=True)
    path = NAMED / name
    path.touch(mode=0o444, exist_ok=False)

    def hold() -> None:
        unshare(NEW_NETWORK)
        mount(OWN, path, None, BIND)

    try:
        apart(hold)
    except OSError:
        path.unlink()
        raise
    return str(path)


def inhabitants(netns: str) -> list[int]:
    """The processes in a namespace, this one excepted."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or is not to be looked into
            if (entry / "ns/net").samefile(netns):
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
    for name, value in UNUSED.items():
        if (file := _file(name)).exists():
            file.write_text(value)
    for name, value in SETTINGS.items():
        _file(name).write_text(value)


def _file(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def setting(name: str, netns: str | None = None) -> str:
    """A setting that holds in a namespace, as sysctl(8) calls it."""
    with inside(netns):
        return _file(name).read_text().strip()


def available_congestion(netns: str | None = None) -> tuple[str, ...]:
    """The congestion controls that the kernel has loaded."""
    return tuple(setting("net.ipv4.tcp_available_congestion_control", netns).split())


def unknown(congestion: str | None, netns: str | None, error: OSError) -> MachineError:
    """The error for a congestion control that the kernel refused."""
    known = available_congestion(netns)
    return MachineError(
        f"this kernel does not offer the congestion control {congestion!r} ({error.strerror})",
        fix=f"Available: {', '.join(known)}; others may come with 'modprobe tcp_{congestion}'.",
    )
