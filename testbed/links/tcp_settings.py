"""How TCP, and multicast, are set in every node's network namespace.

What one algorithm's connections have learned about a link must not be where the next one's begin. And a whole
message must fit into the kernel at either end: else a link falls silent whenever the process that should hand
over the rest, or make room for it, waits for a processor, which it shares with nodes that compute already.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from testbed.errors import MachineError
from testbed.links.namespaces import inside

_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")

SETTINGS = {
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_rmem": "4096 4194304 16777216",
    "net.ipv4.tcp_wmem": "4096 4194304 16777216",
    # A node may be in many multicast groups, and says so several times: it is not asked again. Bridges say nothing.
    "net.ipv4.igmp_max_memberships": "1024",
    "net.ipv4.igmp_qrv": "3",
    "net.ipv4.conf.default.igmpv3_unsolicited_report_interval": "100",
    "net.ipv4.igmp_link_local_mcast_reports": "0",
}
"""As sysctl(8) calls them; a network namespace has its own. Compose sets the same (``compose/base.yaml``)."""


FILTERS = ("iptables", "ip6tables", "arptables")
"""What bridges hand every packet to, where a host's engine has loaded br_netfilter: switches of ours filter nothing."""


def settle() -> None:
    """Set the calling thread's namespace up, before any socket is made in it."""
    for name, value in SETTINGS.items():
        _file(name).write_text(value)
    for name in FILTERS:
        if (file := _file(f"net.bridge.bridge-nf-call-{name}")).exists():
            file.write_text("0")


def remembers_connections(netns: str | None) -> bool:
    """Whether a namespace's connections leave something behind for later ones."""
    with inside(netns):
        return _file("net.ipv4.tcp_no_metrics_save").read_text().strip() == "0"


def _file(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def default_congestion(netns: str | None) -> str:
    """The congestion control of sockets in a namespace whose route says nothing."""
    with inside(netns):
        return _DEFAULT.read_text().strip()


def available_congestion(netns: str | None = None) -> tuple[str, ...]:
    """The congestion controls that the kernel has loaded."""
    with inside(netns):
        return tuple(_AVAILABLE.read_text().split())


def require_congestion(congestion: str) -> None:
    """Raises MachineError for a congestion control that the kernel neither has nor loads for this process.

    A socket is asked: that takes no privilege, and loads what root may have loaded.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asked:
        try:
            asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
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
