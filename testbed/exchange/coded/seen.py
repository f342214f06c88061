"""What a node saw of a step's packets: times, bytes, what others told of themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from testbed.exchange.base import Travel
from testbed.exchange.coded.header import Note
from testbed.node import Message, Node
from testbed.record.events import CodedRecord


class Seen:
    """Of ``step``, whose first packet was sent at ``start_s``."""

    def __init__(self, node: Node, step: int, start_s: float, own: Note) -> None:
        self._node, self.step, self._start_s, self._own = node, step, start_s, own
        self._packets, self._bytes_up = 0, 0
        self._first_sent_s = self._sent_s = start_s
        self._first_s: float | None = None
        self._arrived_s = self._last_s = start_s
        self._began_s: dict[int, float] = {}
        self._notes: dict[int, Note] = {}
        self._received: Counter[int] = Counter()

    def sent(self, frame_bytes: int) -> None:
        """A packet has just been handed over."""
        self._packets += 1
        self._bytes_up += frame_bytes
        self._sent_s = self._node.now()
        if self._first_s is None:
            self._first_sent_s = self._sent_s

    def came(self, message: Message, note: Note) -> None:
        """A packet has come and been decoded."""
        sender = message.sender
        self._notes[sender] = note
        self._began_s[sender] = min(message.sent_s, self._began_s.get(sender, message.sent_s))
        self._received[sender] += self._node.endpoint.frame_bytes(message)
        if self._first_s is None:
            self._first_s = message.first_s
        self._first_s = min(self._first_s, message.first_s)
        self._arrived_s = max(self._arrived_s, message.arrived_s)
        self._last_s = max(self._last_s, message.last_s)

    @property
    def notes(self) -> list[Note]:
        """Of all nodes that were heard of, and one's own."""
        return [self._own, *self._notes.values()]

    @property
    def t_comm_s(self) -> float:
        """From when the last of those one hears of began to send, until all had come and been sent."""
        began_s = max([self._start_s, *self._began_s.values()])
        return max(0.0, max(self._last_s, self._sent_s) - began_s)

    def travel(self) -> Travel:
        """From the first packet's start to the last one's end; phases after the first are part of receiving."""
        sent_s = self._first_sent_s
        first_s = max(sent_s, sent_s if self._first_s is None else self._first_s)
        return Travel(
            start_s=self._start_s,
            sent_s=sent_s,
            first_s=first_s,
            arrived_s=max(self._arrived_s, self._sent_s),
            last_s=max(self._last_s, self._sent_s),
            bytes_up=self._bytes_up,
            bytes_down=self._received.total(),
        )

    def record(self, node: str, r: int, names: Mapping[int, str]) -> CodedRecord:
        """As it stands in the records."""
        return CodedRecord(
            node=node,
            step=self.step,
            r=r,
            packets=self._packets,
            bytes_sent=self._bytes_up,
            received={names[sender]: many for sender, many in sorted(self._received.items())},
            saturated=self._own.saturated,
            t_calc_s=self._own.t_calc_s,
            t_comm_s=self.t_comm_s,
        )
