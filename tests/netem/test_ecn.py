"""Explicit congestion notification: TCP is asked to use it, so that a line marks instead of losing."""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass

from lines_rig import PORT, UP, Lines, shape

from testbed.links.network import namespaces
from testbed.links.network.devices import subnet_routes
from testbed.links.tc.netlink import NetlinkChannel
from testbed.scenario.link_state import NONE, Impairments

BYTES = 4_000_000
_RETRANSMITTED, _DELIVERED_MARKED, _REPEATED = 100, 196, 216
"""Where they are in the kernel's ``struct tcp_info``; the last: what the receiver had already."""


@dataclass
class Sent:
    """What became of a flow, as its sender counted."""

    lost: int
    marked: int


def flow(lines: Lines, impairments: Impairments, ecn: bool) -> Sent:
    """Bulk TCP from ``a`` to ``b`` over a line that is impaired once they are connected."""
    lines.prepare({UP: shape(NONE)}, impaired=(UP,), ecn=ecn)
    with namespaces.inside(lines.netns["b"]):
        listener = socket.create_server((lines.address["b"], PORT))
    with namespaces.inside(lines.netns["a"]):
        near = socket.create_connection((lines.address["b"], PORT), timeout=30)
    with listener, near:
        far, _ = listener.accept()
        held = lines.impair(impairments, ecn=ecn)
        assert held["tcp_ecn"] is ecn
        reader = threading.Thread(target=_drain, args=(far, BYTES), daemon=True)
        reader.start()
        near.sendall(bytes(BYTES))
        reader.join(60)
        assert not reader.is_alive()
        return _counted(near)


def _drain(far: socket.socket, count: int) -> None:
    """Closed only then: who closes first would be retransmitted, too."""
    while count:
        count -= len(far.recv(1 << 18))


def _counted(near: socket.socket) -> Sent:
    info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)

    def at(offset: int) -> int:
        return int(struct.unpack_from("=I", info, offset)[0])

    return Sent(at(_RETRANSMITTED) - at(_REPEATED), at(_DELIVERED_MARKED))


def test_what_would_be_lost_is_marked(lines: Lines) -> None:
    with_ecn = flow(lines, Impairments(loss=0.02, ecn=True), ecn=True)
    without = flow(lines, Impairments(loss=0.02, ecn=True), ecn=False)
    assert with_ecn.lost == 0 and with_ecn.marked > 0
    assert without.lost > 20 and without.marked == 0


def test_routes_are_as_before_afterwards(lines: Lines) -> None:
    def asked() -> list[bool]:
        cable = lines.cables["a"]
        with NetlinkChannel(cable.nic.netns) as channel:
            return [route.settings.ecn for route in subnet_routes(channel, cable.nic.index)]

    lines.prepare({UP: shape(NONE)}, ecn=True)
    assert asked() == [True]
    assert lines.agent.tear_down() == []
    assert asked() == [False]
