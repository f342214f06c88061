"""From what was seen of a node's connections and interfaces to its records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from testbed.links.wire import InterfaceSeen, SocketSeen
from testbed.record.job_events import CarriedRecord, SocketRecord

DATA, CONTROL, LOOPBACK = "data", "control", "loopback"


class Owner(NamedTuple):
    """Whose an address is, and of what kind its interface."""

    node: str
    role: str


def role_of(interface: InterfaceSeen, data: int) -> str:
    """``data``: the index of the shaped one."""
    if interface.loopback:
        return LOOPBACK
    return DATA if interface.index == data else CONTROL


def owners(
    seen: Mapping[str, Iterable[InterfaceSeen]], data: Mapping[str, int]
) -> dict[str, Owner]:
    """By address, but for those of loopbacks, which every node has."""
    return {
        address: Owner(node, role_of(interface, data[node]))
        for node, interfaces in seen.items()
        for interface in interfaces
        if not interface.loopback
        for address in interface.addresses
    }


def carried(
    node: str, before: Sequence[InterfaceSeen], after: Sequence[InterfaceSeen], data: int
) -> Iterator[CarriedRecord]:
    """What each interface carried between two looks; one that was not there at first, since it was made."""
    first = {interface.index: interface for interface in before}
    for now in after:
        grown = now.since(first[now.index]) if now.index in first else now
        yield CarriedRecord(
            node=node,
            interface=now.name,
            role=role_of(now, data),
            sent_bytes=grown.sent_bytes,
            sent_packets=grown.sent_packets,
            received_bytes=grown.received_bytes,
            received_packets=grown.received_packets,
        )


def connection(
    node: str, seen: SocketSeen, known: Mapping[str, Owner], seconds: Callable[[int], float]
) -> SocketRecord:
    """A connection with the names of both ends. ``known``: whose addresses are; ``seconds``: of the run's clock."""
    peer, role = _other_end(node, seen, known)
    return SocketRecord(
        node=node,
        own=seen.own,
        peer=seen.peer,
        peer_node=peer,
        interface=role,
        bytes_sent=seen.bytes_sent,
        bytes_received=seen.bytes_received,
        segments_out=seen.segments_out,
        retransmitted=seen.retransmitted,
        bytes_retransmitted=seen.bytes_retransmitted,
        least_rtt_us=seen.least_rtt_us,
        ended_s=None if seen.ended_ns is None else seconds(seen.ended_ns),
    )


def _other_end(node: str, seen: SocketSeen, known: Mapping[str, Owner]) -> tuple[str | None, str]:
    """Whose the other end is, and the interface on the way there: where it is, unless it is of no node."""
    own, peer = known.get(address_of(seen.own)), known.get(address_of(seen.peer))
    if own is None or (peer is not None and peer.node == node):
        return node, LOOPBACK  # an address that no other interface has, or its own
    if peer is None:
        return None, own.role
    return peer.node, peer.role


def address_of(end: str) -> str:
    """Without its port, and the brackets of IPv6."""
    return end.rpartition(":")[0].strip("[]")
