"""Per-route TCP settings of a subnet: congestion control, least retransmission time-out, and ECN.

A route's setting holds for every socket that uses it, whoever opened it and on either side of accepting:
no privilege is needed in the processes that talk, and no other traffic of the machine is touched.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineError
from testbed.links.namespaces import inside
from testbed.links.netlink import (
    CREATE,
    REPLACE,
    KernelRefused,
    Netlink,
    attribute,
    attributes,
    nested,
    number,
    text,
)

_NEW, _GET = 24, 26
_DESTINATION, _DEVICE, _PRIORITY, _PREFERRED_SOURCE, _METRICS, _TABLE = 1, 4, 6, 7, 8, 15
_FEATURES, _RTO_MIN, _CONGESTION = 12, 13, 16
_ECN = 1
_MAIN, _LINK_SCOPE, _UNICAST = 254, 253, 1
_KEPT = (_DESTINATION, _DEVICE, _PRIORITY, _PREFERRED_SOURCE, _TABLE)
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True, slots=True)
class SubnetRoute:
    """The route to a device's own subnet: what identifies it, and its TCP settings."""

    head: bytes
    identity: tuple[bytes, ...]
    congestion: str | None
    rto_min_ms: int | None
    ecn: bool = False


def subnet_routes(netlink: Netlink, index: int) -> list[SubnetRoute]:
    """The routes to the subnets that a device is in."""
    found = []
    for body in netlink.dump(_GET, struct.pack("=BBBBBBBBI", socket.AF_INET, *([0] * 8))):
        _, bits, _, _, table, _, scope, kind, _ = struct.unpack_from("=BBBBBBBBI", body)
        held = attributes(body[12:])
        if number(held.get(_DEVICE, b"")) != index or not bits:
            continue
        if (table, scope, kind) == (_MAIN, _LINK_SCOPE, _UNICAST):
            found.append(_route(body[:12], held))
    return found


def _route(head: bytes, held: dict[int, bytes]) -> SubnetRoute:
    metrics = attributes(held.get(_METRICS, b""))
    identity = tuple(attribute(kind, held[kind]) for kind in _KEPT if kind in held)
    return SubnetRoute(
        head,
        identity,
        text(metrics[_CONGESTION]) if _CONGESTION in metrics else None,
        number(metrics[_RTO_MIN]) if _RTO_MIN in metrics else None,
        bool(number(metrics.get(_FEATURES, b"")) & _ECN),
    )


def set_route(
    netlink: Netlink,
    route: SubnetRoute,
    congestion: str | None,
    rto_min_ms: int | None,
    ecn: bool = False,
) -> None:
    """Put TCP settings on a route in place; None takes a setting off it. Raises KernelRefused."""
    metrics = [attribute(_FEATURES, _ECN)] if ecn else []
    if rto_min_ms is not None:
        metrics.append(attribute(_RTO_MIN, rto_min_ms))
    if congestion is not None:
        metrics.append(attribute(_CONGESTION, congestion))
    body = route.head + b"".join(route.identity)
    netlink.request(_NEW, CREATE | REPLACE, body + (nested(_METRICS, *metrics) if metrics else b""))


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
                raise _unknown(congestion, None, error) from error


def shape_route(
    netns: str | None,
    index: int,
    congestion: str | None,
    rto_min_ms: int | None,
    ecn: bool = False,
) -> list[SubnetRoute]:
    """Set the TCP settings of a device's subnets, and check them; returns the routes as they were.

    ``ecn``: who connects asks for it, and who is asked agrees, whatever ``net.ipv4.tcp_ecn`` says.

    Raises MachineError when the kernel does not know the congestion control.
    """
    with Netlink(netns) as netlink:
        before = subnet_routes(netlink, index)
        for route in before:
            try:
                set_route(netlink, route, congestion, rto_min_ms, ecn)
            except KernelRefused as error:
                raise _unknown(congestion, netns, error) from error
        for route in subnet_routes(netlink, index):
            if (route.congestion, route.rto_min_ms, route.ecn) != (congestion, rto_min_ms, ecn):
                raise MachineError(
                    f"the route of device {index} should have congestion control {congestion}, "
                    f"rto_min {rto_min_ms} ms and ecn {ecn}, but the kernel holds "
                    f"{route.congestion}, {route.rto_min_ms} ms and {route.ecn}"
                )
    return before


def _unknown(congestion: str | None, netns: str | None, error: OSError) -> MachineError:
    known = available_congestion(netns)
    return MachineError(
        f"this kernel does not offer the congestion control {congestion!r} ({error.strerror})",
        fix=f"Available: {', '.join(known)}; others may come with 'modprobe tcp_{congestion}'.",
    )
