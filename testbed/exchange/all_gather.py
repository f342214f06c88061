"""Exchange of workers among themselves: each sends its payload to all others, and each averages
what it has then.

Frames of a run: a HELLO of every worker to those before it, which were there to be connected to;
then per step and bucket a GRADIENT of everybody to everybody; a BYE, after which nobody needs
anything any more.

``AllGatherExchange`` sends a copy to each; with ``multicast`` there is one copy on the sender's
link.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from testbed.errors import NodeLost
from testbed.exchange.base import (
    PREPARATION_S,
    ExchangeSpec,
    Membership,
    Ticket,
    TransferTiming,
    Update,
)
from testbed.exchange.collect import MessageCollector
from testbed.node import Buffer, Kind, Message, Node


class AllGatherExchange:
    """One worker's side (``testbed.exchange.base.WorkerSide``)."""

    def __init__(self, node: Node, peers: Membership, *, multicast: bool = False) -> None:
        self._node, self._peers, self._multicast = node, peers, multicast
        self.gathering = MessageCollector(node, peers)
        self.bytes_sent = 0

    @property
    def bytes_received(self) -> int:
        """Frame bytes so far."""
        return self.gathering.bytes_received

    @property
    def last_step(self) -> int | None:
        """Known from the beginning."""
        return self._peers.last_step

    def greet(self) -> None:
        """Connections exist between all workers when this returns."""
        if self._multicast:
            self._node.endpoint.form_groups([frozenset(self._peers.workers)])
        earlier = [peer for peer in self._peers.others if peer < self._peers.own]
        later = [peer for peer in self._peers.others if peer > self._peers.own]
        for peer in earlier:
            self.send([peer], Kind.HELLO, 0, 0, b"")
        self.gathering.collect(Kind.HELLO, 0, 0, later, self._peers.timeout_s + PREPARATION_S)

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a bucket's payload to all others; returns when its last byte is handed over."""
        start_s = self._node.now()
        message = Message(Kind.GRADIENT, step, bucket, self._peers.own, payload)
        try:
            if self._multicast:
                frame_bytes = self._node.endpoint.multicast(0, message)
            else:
                frame_bytes = self._node.endpoint.send(self._peers.others, message)
        except NodeLost as lost:
            raise lost.during(step, "sending") from lost
        self.bytes_sent += frame_bytes
        return PeerTicket(self, message, start_s, self._node.now(), frame_bytes)

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The others' GRADIENT for ``bucket`` of ``step``, by rank. Raises NodeLost, WireError."""
        return self.gathering.collect(
            Kind.GRADIENT, step, bucket, self._peers.others, self._peers.timeout_s
        )

    def close(self) -> None:
        """Say goodbye, and stay until all others have: what they lack is repeated until then."""
        step = self._peers.last_step or 0
        self.send(self._peers.others, Kind.BYE, step, 0, b"")
        self.gathering.collect(Kind.BYE, step, 0, self._peers.others, self._peers.timeout_s)

    def send(
        self, destinations: Collection[int], kind: Kind, step: int, bucket: int, body: Buffer
    ) -> None:
        """A copy to each of ``destinations``."""
        message = Message(kind, step, bucket, self._peers.own, body)
        if destinations:
            self.bytes_sent += self._node.endpoint.send(destinations, message)

    def frame_bytes(self, message: Message) -> int:
        """Bytes of ``message`` on the wire, as a frame."""
        return self._node.endpoint.frame_bytes(message)

    @property
    def workers(self) -> list[int]:
        """Return the workers' peer numbers, by rank."""
        return list(self._peers.workers)


class PeerTicket:
    """A submitted bucket (``testbed.exchange.base.Ticket``)."""

    def __init__(
        self,
        exchange: AllGatherExchange,
        own: Message,
        start_s: float,
        sent_s: float,
        bytes_up: int,
    ) -> None:
        self._exchange, self._own = exchange, own
        self._start_s, self._sent_s, self._bytes_up = start_s, sent_s, bytes_up
        self._travel: TransferTiming | None = None

    def wait(self) -> Update:
        """All workers' payloads, by rank."""
        exchange, own = self._exchange, self._own
        others = exchange.gather(own.step, own.bucket)
        self._travel = timing_of(
            self._start_s,
            self._sent_s,
            others,
            self._bytes_up,
            sum(exchange.frame_bytes(message) for message in others),
        )
        parts = {message.sender: message for message in [own, *others]}
        return Update("gradients", own.step, parts=[parts[peer] for peer in exchange.workers])

    @property
    def travel(self) -> TransferTiming:
        """How it went. Raises RuntimeError before ``wait``."""
        if self._travel is None:
            raise RuntimeError("travel is known after wait()")
        return self._travel


def timing_of(
    start_s: float, sent_s: float, came: Collection[Message], bytes_up: int, bytes_down: int
) -> TransferTiming:
    """Return the timing of a step in which ``came`` was received. What came during sending was not
    waited for."""
    last_s = max([sent_s, *(message.last_s for message in came)])
    return TransferTiming(
        start_s=start_s,
        sent_s=sent_s,
        first_s=max(sent_s, min((message.first_s for message in came), default=sent_s)),
        arrived_s=max([sent_s, *(message.arrived_s for message in came)]),
        last_s=last_s,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
    )


UNICAST = ExchangeSpec(AllGatherExchange)
MULTICAST = ExchangeSpec(partial(AllGatherExchange, multicast=True), multicasts=True)
