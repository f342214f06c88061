"""Exchange of workers among themselves: each sends its payload to all others, and each averages
what it has then.

Frames of a run: a HELLO of every worker to those before it, which were there to be connected to;
then per step and bucket a GRADIENT of everybody to everybody; a BYE, after which nobody needs
anything any more.

``AllGatherExchange`` sends a copy to each; with ``multicast`` there is one copy on the sender's
link.
"""

from __future__ import annotations

from functools import partial

from testbed.exchange.base import (
    PREPARATION_S,
    ExchangeSpec,
    Membership,
    Ticket,
    TransferTiming,
    Update,
    WorkerSide,
    timing_of,
)
from testbed.exchange.collect import MessageCollector
from testbed.node import Buffer, Kind, Message, Node


class AllGatherExchange(WorkerSide):
    """One worker's side."""

    def __init__(self, node: Node, peers: Membership, *, multicast: bool = False) -> None:
        super().__init__(node, peers)
        self._group = 0 if multicast else None
        self._collector = MessageCollector(peers.names, peers.workers, self._receive, ahead=1)

    def connect(self) -> None:
        """Connections exist between all workers when this returns."""
        own, others = self._peers.own, self._peers.others
        if self._group is not None:
            self._node.endpoint.form_groups([frozenset(self._peers.workers)])
        for peer in (peer for peer in others if peer < own):
            self._send([peer], Kind.HELLO, 0)
        later = [peer for peer in others if peer > own]
        self._collector.collect(Kind.HELLO, 0, 0, later, self._peers.timeout_s + PREPARATION_S)

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a bucket's payload to all others."""
        start_s = self._node.now()
        own = Message(Kind.GRADIENT, step, bucket, self._peers.own, payload)
        others = self._peers.others
        bytes_up = self._send(others, Kind.GRADIENT, step, bucket, payload, self._group)
        return Ticket(partial(self._finish, own, start_s, self._node.now(), bytes_up))

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The others' GRADIENT for ``bucket`` of ``step``, by rank. Raises NodeLost, WireError."""
        return self._collector.collect(
            Kind.GRADIENT, step, bucket, self._peers.others, self._peers.timeout_s
        )

    def close(self) -> None:
        """Say goodbye, and stay until all others have: what they lack is repeated until then."""
        step, others = self._peers.last_step or 0, self._peers.others
        if others:
            self._send(others, Kind.BYE, step)
        self._collector.collect(Kind.BYE, step, 0, others, self._peers.timeout_s)

    def _finish(
        self, own: Message, start_s: float, sent_s: float, bytes_up: int
    ) -> tuple[Update, TransferTiming]:
        """All workers' payloads, by rank."""
        others = self.gather(own.step, own.bucket)
        bytes_down = sum(map(self.frame_bytes, others))
        parts = {message.sender: message for message in [own, *others]}
        update = Update("gradients", own.step, parts=[parts[peer] for peer in self._peers.workers])
        return update, timing_of(start_s, sent_s, others, bytes_up, bytes_down)


UNICAST = ExchangeSpec(AllGatherExchange)
MULTICAST = ExchangeSpec(partial(AllGatherExchange, multicast=True), multicasts=True)
