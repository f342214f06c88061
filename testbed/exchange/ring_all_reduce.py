"""Ring all-reduce: the sum goes round in parts, and nobody sends more than twice the gradient.

The gradient is cut into as many segments as there are workers. In each hop every worker sends a
segment to the next one and receives another from the one before it. In the first n - 1 hops it adds
what it receives to its own, and so ends with one segment that is everybody's sum (reduce-scatter);
it makes that the mean. In the other n - 1 hops it takes over what it receives, and so ends with all
means (all-gather). A worker sends 2(n - 1)/n of the gradient's bytes, whatever n is (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).

A segment is added up in the order of the ring, whatever comes first: sums do not depend on timing.
Everybody uses the mean as it was sent, its owner too, so that all have the same bits.

Frames of a run: as of ``testbed.exchange.all_gather``, and per step one GRADIENT for each hop,
whose number is its bucket.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import numpy as np

from testbed.compress import builtin
from testbed.compress.base import BufferPool, Bytes, Floats, codings
from testbed.compress.layout import Layout
from testbed.errors import NodeLost, WireError
from testbed.exchange.all_gather import AllGatherExchange, timing_of
from testbed.exchange.base import ExchangeSpec, Membership, TransferTiming, Update
from testbed.node import Buffer, Kind, Message, Node
from testbed.registry import Options, read

del builtin


class RingOptions(Options):
    """``values``: how a segment is written; sums are float32 always."""

    values: Literal["fp32", "bf16"] = "fp32"


class RingExchange(AllGatherExchange):
    """One worker's side (``testbed.exchange.base.WorkerSide``); it carries vectors."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        options = read("exchange_options", RingOptions, peers.options)
        self.place, self.many = list(peers.workers).index(peers.own), len(peers.workers)
        self._next = peers.workers[(self.place + 1) % self.many]
        self._before = peers.workers[self.place - 1]
        self._coding = codings.get(options.values)(Layout.whole("segment", 1))
        self._read = codings.get(options.values).read
        self._scratch = BufferPool()

    def submit(self, step: int, bucket: int, payload: Buffer) -> RingTicket:
        """Send the first segment of float32 ``payload`` on its way; returns when its last byte is
        handed over."""
        if bucket:
            raise WireError(f"a ring carries whole gradients, and bucket {bucket} was submitted")
        given = np.frombuffer(payload, np.float32)
        vector = self._scratch.array("vector", given.size, np.float32)
        vector[:] = given
        return RingTicket(self, self._node, step, vector)

    def settle(self, segment: Floats) -> None:
        """Make a sum the mean, as it will be read everywhere."""
        segment /= self.many
        segment[:] = self._coding.write(segment, self._section(segment.size), Random(0))

    def pass_on(self, step: int, hop: int, segment: Floats) -> int:
        """To the next worker; returns frame bytes. Raises NodeLost."""
        section = self._section(segment.size)
        self._coding.write(segment, section, Random(0))
        message = Message(Kind.GRADIENT, step, hop, self._peers.own, section.data)
        try:
            sent = self._node.endpoint.send([self._next], message)
        except NodeLost as lost:
            raise lost.during(step, "sending") from lost
        self.bytes_sent += sent
        return sent

    def take(self, step: int, hop: int, count: int) -> tuple[Message, Floats]:
        """From the worker before: the message, and its ``count`` values. Raises NodeLost,
        WireError."""
        (message,) = self.gathering.collect(
            Kind.GRADIENT, step, hop, [self._before], self._peers.timeout_s, [self._next]
        )
        try:
            return message, self._read(np.frombuffer(message.body, np.uint8), count, self._room)
        except WireError as error:
            name = self._peers.names[message.sender]
            raise WireError(f"segment of {name}, step {step}, hop {hop}: {error}") from error

    def _section(self, count: int) -> Bytes:
        return self._scratch.array("section", self._coding.section_bytes(count), np.uint8)

    def _room(self, count: int) -> Floats:
        return self._scratch.array("came", count, np.float32)


class RingTicket:
    """A submitted gradient (``testbed.exchange.base.Ticket``).

    ``vector``: float32 (size,), changed until it is the mean, which holds until the next gradient
    is submitted.
    """

    def __init__(self, ring: RingExchange, node: Node, step: int, vector: Floats) -> None:
        self._ring, self._node, self._step, self._vector = ring, node, step, vector
        self._segments = np.array_split(vector, ring.many)  # views
        self._came: list[Message] = []
        self._travel: TransferTiming | None = None
        self._bytes_up, self._start_s = 0, node.now()
        self._send(0)
        self._sent_s = node.now()

    def wait(self) -> Update:
        """The mean of all workers' vectors."""
        hops = 2 * (self._ring.many - 1)
        for hop in range(hops):
            self._receive(hop)
            if hop == self._ring.many - 2:
                self._ring.settle(self._segment(hop + 1))
            if hop + 1 < hops:
                self._send(hop + 1)
        bytes_down = sum(map(self._ring.frame_bytes, self._came))
        self._travel = timing_of(
            self._start_s, self._sent_s, self._came, self._bytes_up, bytes_down
        )
        return Update("gradient", self._step, self._vector.data.cast("B"))

    @property
    def travel(self) -> TransferTiming:
        """How it went. Raises RuntimeError before ``wait``."""
        if self._travel is None:
            raise RuntimeError("travel is known after wait()")
        return self._travel

    def _segment(self, hop: int) -> Floats:
        """Return the segment sent in ``hop``: in each hop, the one received in the hop before
        it."""
        return self._segments[(self._ring.place - hop) % self._ring.many]

    def _send(self, hop: int) -> None:
        if self._ring.many > 1:
            self._bytes_up += self._ring.pass_on(self._step, hop, self._segment(hop))

    def _receive(self, hop: int) -> None:
        segment = self._segment(hop + 1)
        message, values = self._ring.take(self._step, hop, segment.size)
        self._came.append(message)
        if hop < self._ring.many - 1:
            segment += values
        else:
            segment[:] = values


RING = ExchangeSpec(RingExchange, carries="vector", options=RingOptions)
