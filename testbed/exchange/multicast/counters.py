"""What a multicaster has sent and received: datagrams and their bytes, without the headers of UDP and below."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from testbed.exchange.multicast.packet import HEADERS_ON_LINK


@dataclass
class Amount:
    """Datagrams, and bytes in them."""

    packets: int = 0
    bytes: int = 0

    def add(self, packets: int, octets: int) -> None:
        """Count some more."""
        self.packets += packets
        self.bytes += octets

    @property
    def wire_bytes(self) -> int:
        """Bytes that an Ethernet link counts for them."""
        return self.bytes + HEADERS_ON_LINK * self.packets


@dataclass
class Counters:
    """Totals since the start. What was sent is counted once, however many members it was for."""

    data: Amount = field(default_factory=Amount)
    repairs: Amount = field(default_factory=Amount)
    feedback: Amount = field(default_factory=Amount)
    """Reports of one's own, and questions to members."""
    received: Amount = field(default_factory=Amount)
    """Of every kind, strangers' included."""
    to: dict[int, Amount] = field(default_factory=dict)
    """What should come to each peer, of every kind; a copy to a group counts for all its members."""
    frame_bytes_sent: int = 0
    frame_bytes_received: int = 0
    strangers: int = 0
    """Datagrams dropped because they were not of this run, or cannot have been sent by a peer of ours."""
    duplicates: int = 0

    @property
    def sent(self) -> Amount:
        """Everything sent."""
        kinds = (self.data, self.repairs, self.feedback)
        return Amount(sum(kind.packets for kind in kinds), sum(kind.bytes for kind in kinds))

    def to_json(self) -> dict[str, Any]:
        """As sent over the control network."""
        return {**asdict(self), "sent": asdict(self.sent), "wire_bytes": self.sent.wire_bytes}
