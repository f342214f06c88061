"""Ring all-reduce: the sum goes round in parts, and nobody sends more than twice the gradient.

The gradient is cut into as many segments as there are workers. In each hop every worker sends a
segment to the next one and receives another from the one before it. In the first n - 1 hops it adds
what it receives to its own, and so ends with one segment that is everybody's sum (reduce-scatter);
it makes that the mean. In the other n - 1 hops it takes over what it receives, and so ends with all
means (all-gather). A worker sends 2(n - 1)/n of the gradient's bytes, whatever n is (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).

A segment is added up in the order of the ring, whatever comes first: sums do not depend on timing.
Everybody uses the mean as it was sent, its owner too, so that all have the same bits.

    worker 0 of 3   sends segment   does with what it receives
    hop 0           0               adds it to segment 2
    hop 1           2               adds it to segment 1, which is then everybody's: divides it by 3
    hop 2           1               takes it over as segment 0
    hop 3           0               takes it over as segment 2

Frames of a run: as of ``testbed.exchange.all_gather``, and per step one GRADIENT for each hop,
whose number is its bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Literal

import numpy as np

from testbed.compress.base import BufferPool, Bytes, Floats, codings
from testbed.compress.layout import Layout
from testbed.errors import WireError
from testbed.exchange.all_gather import AllGatherExchange
from testbed.exchange.base import (
    ExchangeSpec,
    Membership,
    Ticket,
    TransferTiming,
    Update,
    timing_of,
)
from testbed.node import Buffer, Kind, Message, Node
from testbed.registry import Options, read


class RingOptions(Options):
    """``values``: how a segment is written; sums are float32 always."""

    values: Literal["fp32", "bf16"] = "fp32"


class RingExchange(AllGatherExchange):
    """One worker's side; it carries vectors."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        options = read("exchange_options", RingOptions, peers.options)
        self._rank, self._workers = list(peers.workers).index(peers.own), len(peers.workers)
        self._next = peers.workers[(self._rank + 1) % self._workers]
        self._before = peers.workers[self._rank - 1]
        self._coding = codings.get(options.values)(Layout.whole("segment", 1))
        self._read = codings.get(options.values).read
        self._random = Random(0)  # floats are rounded to the nearest, and take nothing from it
        self._scratch = BufferPool()

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send the first segment of float32 ``payload`` on its way. The update holds until the next
        gradient is submitted."""
        if bucket:
            raise WireError(f"a ring carries whole gradients, and bucket {bucket} was submitted")
        gradient = np.frombuffer(payload, np.float32)
        vector = self._scratch.array("vector", gradient.size, np.float32)
        vector[:] = gradient
        views = np.array_split(vector, self._workers)
        # by hop: in each the one is sent that was received in the hop before it
        segments = [views[(self._rank - hop) % self._workers] for hop in range(self._workers)]
        start_s = self._node.now()
        bytes_up = self._send_segment(step, 0, segments[0])
        finish = partial(
            self._finish_ring, step, vector, segments, start_s, self._node.now(), bytes_up
        )
        return Ticket(finish)

    def _finish_ring(
        self,
        step: int,
        vector: Floats,
        segments: Sequence[Floats],
        start_s: float,
        sent_s: float,
        bytes_up: int,
    ) -> tuple[Update, TransferTiming]:
        """Make ``vector``, float32 (size,), the mean of all workers' vectors."""
        messages: list[Message] = []
        summed = self._workers - 1
        for hop in range(2 * summed):
            segment = segments[(hop + 1) % self._workers]
            message, values = self._receive_segment(step, hop, segment.size)
            messages.append(message)
            if hop < summed:  # reduce-scatter
                segment += values
            else:  # all-gather
                segment[:] = values
            if hop == summed - 1:  # this segment has everybody's values
                self._make_mean(segment)
            if hop + 1 < 2 * summed:
                bytes_up += self._send_segment(step, hop + 1, segment)
        bytes_down = sum(map(self.frame_bytes, messages))
        timing = timing_of(start_s, sent_s, messages, bytes_up, bytes_down)
        return Update("gradient", step, vector.data.cast("B")), timing

    def _make_mean(self, segment: Floats) -> None:
        """Make a sum the mean, as it will be read everywhere."""
        segment /= self._workers
        segment[:] = self._coding.write(segment, self._section(segment.size), self._random)

    def _send_segment(self, step: int, hop: int, segment: Floats) -> int:
        """Send a segment to the next worker, if there is another; returns frame bytes. Raises
        NodeLost."""
        if self._workers == 1:
            return 0
        section = self._section(segment.size)
        self._coding.write(segment, section, self._random)
        return self._send([self._next], Kind.GRADIENT, step, hop, section.data)

    def _receive_segment(self, step: int, hop: int, count: int) -> tuple[Message, Floats]:
        """The message of the worker before, and its ``count`` values. Raises NodeLost,
        WireError."""
        (message,) = self._collector.collect(
            Kind.GRADIENT, step, hop, [self._before], self._peers.timeout_s, waiting=[self._next]
        )
        try:
            return message, self._read(np.frombuffer(message.body, np.uint8), count, self._buffer)
        except WireError as error:
            name = self._peers.names[message.sender]
            raise WireError(f"segment of {name}, step {step}, hop {hop}: {error}") from error

    def _section(self, count: int) -> Bytes:
        return self._scratch.array("section", self._coding.section_bytes(count), np.uint8)

    def _buffer(self, count: int) -> Floats:
        return self._scratch.array("received", count, np.float32)


RING = ExchangeSpec(RingExchange, unit="vector", options=RingOptions)
