"""Records of who talked in some namespaces: connections, interfaces, and ways past them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class InterfaceSeen:
    """One interface; totals since it was made, headers counted."""

    index: int
    name: str
    loopback: bool
    addresses: tuple[str, ...]
    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> InterfaceSeen:
        """Read one that has crossed a pipe as an object."""
        return cls(**{**fields, "addresses": tuple(fields["addresses"])})

    def since(self, before: InterfaceSeen) -> InterfaceSeen:
        """The same, counted from ``before`` on."""
        return replace(
            self,
            sent_bytes=self.sent_bytes - before.sent_bytes,
            sent_packets=self.sent_packets - before.sent_packets,
            received_bytes=self.received_bytes - before.received_bytes,
            received_packets=self.received_packets - before.received_packets,
        )


@dataclass(frozen=True, slots=True)
class SocketSeen:
    """One connection. ``cookie`` names a socket for as long as the machine runs; ``own`` and ``peer``:
    ``address:port``, ``[address]:port`` where the address is IPv6. ``ended_ns``: of the monotonic clock.
    The kernel counts the peer's end as one of ``bytes_received``."""

    cookie: int
    own: str
    peer: str
    bytes_sent: int
    bytes_received: int
    segments_out: int
    retransmitted: int
    bytes_retransmitted: int
    least_rtt_us: int | None
    ended_ns: int | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SocketSeen:
        """Read one that has crossed a pipe as an object."""
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Joined:
    """A connection between a node and ``other``. ``inodes``: of both sockets, the smaller first."""

    node: str
    other: str
    path: str
    inodes: tuple[int, int]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Joined:
        """Read one that has crossed a pipe as an object."""
        return cls(**{**fields, "inodes": tuple(fields["inodes"])})


@dataclass(frozen=True, slots=True)
class Watched:
    """What a node's namespace had: its connections, and its interfaces' counters at the end."""

    sockets: tuple[SocketSeen, ...]
    interfaces: tuple[InterfaceSeen, ...]
    missed: str | None
    joined: tuple[Joined, ...] = ()
    """Unix sockets that led to nodes that come after it."""
    unlooked: str | None = None
    """Why these were not looked at."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Watched:
        """Read one that has crossed a pipe as an object."""
        return cls(
            tuple(map(SocketSeen.from_json, fields["sockets"])),
            tuple(map(InterfaceSeen.from_json, fields["interfaces"])),
            fields["missed"],
            tuple(map(Joined.from_json, fields["joined"])),
            fields["unlooked"],
        )

    def to_json(self) -> dict[str, Any]:
        """Itself as an object."""
        return asdict(self)
