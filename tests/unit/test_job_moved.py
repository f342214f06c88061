"""From what the kernel says of connections and interfaces to a job's records."""

from __future__ import annotations

import socket
import struct

import pytest
from pyroute2.netlink.diag import SOCK_DIAG_BY_FAMILY

from testbed.links.agent.protocol import InterfaceSeen, SocketSeen
from testbed.links.network.connections import decode, query
from testbed.links.tc.netlink import encode
from testbed.runner.exec.trial import Owner, carried, connection, owners


def interface(
    index: int, *addresses: str, sent: int = 100, loopback: bool = False
) -> InterfaceSeen:
    return InterfaceSeen(index, f"if{index}", loopback, addresses, sent, 10, 2 * sent, 20)


def test_interfaces_are_counted_from_the_first_look() -> None:
    first = [interface(1, "127.0.0.1", loopback=True), interface(3, "10.0.0.1", sent=1000)]
    now = [interface(1, loopback=True), interface(3, sent=4000), interface(7, sent=5)]
    found = [(one.role, one.sent_bytes, one.received_bytes) for one in carried("a", first, now, 3)]
    assert found == [("loopback", 0, 0), ("data", 3000, 6000), ("control", 5, 10)]


@pytest.mark.parametrize(
    ("own", "peer", "whose", "role"),
    [
        ("10.0.0.1:5", "10.0.0.2:6", "b", "data"),
        ("10.1.0.1:5", "10.1.0.2:6", "b", "control"),
        ("10.1.0.1:5", "10.0.0.2:6", "b", "data"),  # by where the other end is
        ("[fd00::1]:5", "[fd00::2]:6", "b", "data"),
        ("10.0.0.1:5", "10.0.0.1:6", "a", "loopback"),
        ("10.0.0.1:5", "10.1.0.1:6", "a", "loopback"),
        ("127.0.0.1:5", "127.0.0.1:6", "a", "loopback"),
        ("[::1]:5", "[::1]:6", "a", "loopback"),
        ("10.1.0.1:5", "93.184.216.34:443", None, "control"),
        ("10.0.0.1:5", "10.0.0.254:80", None, "data"),
    ],
)
def test_whose_the_other_end_is(own: str, peer: str, whose: str | None, role: str) -> None:
    seen = {
        "a": [interface(1, "127.0.0.1", "::1", loopback=True), interface(2, "10.1.0.1"), interface(3, "10.0.0.1", "fd00::1")],
        "b": [interface(1, "127.0.0.1", "::1", loopback=True), interface(4, "10.1.0.2"), interface(9, "10.0.0.2", "fd00::2")],
    }  # fmt: skip
    known = owners(seen, {"a": 3, "b": 9})
    assert known["10.1.0.2"] == Owner("b", "control") and "::1" not in known
    record = connection(
        "a", SocketSeen(1, own, peer, 5, 6, 7, 0, 0, None, 3_000), known, lambda ns: ns / 1e3
    )
    assert (record.peer_node, record.interface, record.ended_s) == (whose, role, 3.0)


def description(family: int, own: str, peer: str, info: bytes | None) -> bytes:
    """A whole message: ``struct nlmsghdr``, ``struct inet_diag_msg``, and its attribute."""
    ends = [socket.inet_pton(family, address).ljust(16, b"\0") for address in (own, peer)]
    ports = struct.pack(">HH", 4242, 29500)
    body = (
        struct.pack("=BBBB", family, 1, 0, 0)
        + ports
        + b"".join(ends)
        + struct.pack("=IQ", 3, 77)
        + bytes(20)
    )
    if info is not None:
        body += struct.pack("=HH", 4 + len(info), 2) + info
    return struct.pack("=IHHII", 16 + len(body), 20, 0, 0, 0) + body


def tcp_info(segments: int, length: int = 248) -> bytes:
    info = bytearray(max(length, 248))
    struct.pack_into("=I", info, 16, 1448)
    struct.pack_into("=I", info, 100, 3)
    struct.pack_into("=QQI", info, 120, 1111, 2222, segments)
    struct.pack_into("=I", info, 148, 40)
    struct.pack_into("=QQ", info, 200, 5555, 66)
    return bytes(info[:length])


def test_a_description_of_a_connection() -> None:
    found = decode(description(socket.AF_INET, "10.0.0.1", "10.0.0.2", tcp_info(9)), 123)
    assert found == SocketSeen(77, "10.0.0.1:4242", "10.0.0.2:29500", 5555, 2222, 9, 3, 66, 40, 123)
    mapped = decode(description(socket.AF_INET6, "::ffff:10.0.0.1", "fd00::2", tcp_info(9)))
    assert mapped is not None and mapped.ended_ns is None
    assert (mapped.own, mapped.peer) == ("10.0.0.1:4242", "[fd00::2]:29500")
    assert decode(description(socket.AF_INET, "10.0.0.1", "0.0.0.0", tcp_info(0))) is None
    assert decode(description(socket.AF_INET, "10.0.0.1", "10.0.0.2", None)) is None
    for length, lacks in (
        (192, "bytes_sent, bytes_retrans"),
        (212, "bytes_retrans"),
        (80, "segs_out, min_rtt"),
    ):
        with pytest.raises(OSError, match=f"tcp_info lacks {lacks}"):
            decode(description(socket.AF_INET, "10.0.0.1", "10.0.0.2", tcp_info(9, length)))
    shorter = decode(description(socket.AF_INET, "10.0.0.1", "10.0.0.2", tcp_info(9, 216)))
    longer = decode(description(socket.AF_INET, "10.0.0.1", "10.0.0.2", tcp_info(9, 300)))
    assert shorter == longer and shorter is not None and shorter.bytes_retransmitted == 66
    never = bytearray(tcp_info(9))
    struct.pack_into("=I", never, 148, 0xFFFFFFFF)
    unmeasured = decode(description(socket.AF_INET, "10.0.0.1", "10.0.0.2", bytes(never)))
    assert unmeasured is not None and unmeasured.least_rtt_us is None


def test_what_is_listed_at_the_end_are_connections() -> None:
    asked = encode(query(socket.AF_INET6), SOCK_DIAG_BY_FAMILY, 0)
    family, protocol, wanted, states = struct.unpack_from("=BBBxI", asked, 16)
    assert (len(asked), family, protocol) == (72, socket.AF_INET6, socket.IPPROTO_TCP)
    assert wanted == 1 << 1
    left_out = [state for state in range(1, 12 + 1) if not states >> state & 1]
    assert left_out == [6, 7, 10, 12]  # TIME_WAIT, CLOSE, LISTEN, NEW_SYN_RECV
