"""What the modelled links were asked for and carried, as records of the same form as a real link's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from testbed.fabric.sim.network import VirtualNetwork
from testbed.record.events import LinkChanged, LinkSample
from testbed.scenario.shape import FRAME_BYTES, End, LinkChange
from testbed.scenario.timeline import Timeline

EVERY_S = 0.1
SAMPLED_ENDS = 64
"""Of larger networks only racks, servers and what changes is sampled all the time, and the rest as a whole."""


class Sampler:
    """Writes a sample of every direction in ``often`` every 100 ms, and one of all others at the end."""

    def __init__(
        self,
        network: VirtualNetwork,
        timeline: Timeline,
        often: Iterable[End],
        write: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._network, self._timeline, self._write = network, timeline, write
        self._often = list(often)
        sampled = set(self._often)
        self._rest = [end for end in network.board.ends if end not in sampled]
        self._before: dict[End, tuple[float, float, int, bool]] = {}

    def start(self) -> None:
        """This instant is t0."""
        for end in self._network.board.ends:
            self._mark(end)
        self._later()

    def changed(self, change: LinkChange) -> None:
        """A link has changed, on time."""
        asked = change.shape.impairments
        record = LinkChanged(
            change.end.link, change.end.direction, change.time_s, change.time_s,
            change.shape.rate_bits, change.shape.queue_bytes, asked.to_json() if asked else None,
        )  # fmt: skip
        self._write([record.to_json()])

    def finish(self) -> None:
        """Write what is not written yet."""
        if self._before:  # else it failed before t0
            self._look([*self._often, *self._rest])

    def _later(self) -> None:
        def look() -> None:
            self._look(self._often)
            self._later()

        self._network.clock.at(self._network.clock.now + EVERY_S, look)

    def _look(self, ends: list[End]) -> None:
        self._network.flows.advance()
        samples = [self._sample(end) for end in ends]
        self._write([sample.to_json() for sample in samples if sample.to_s > sample.from_s])

    def _sample(self, end: End) -> LinkSample:
        board = self._network.board
        number = board.number[end]
        from_s, carried, drops, waited = self._before[end]
        largest = float(board.largest_bits[number])
        to_s, carried_now, drops_now, waits = self._mark(end)
        return LinkSample(
            link=end.link,
            direction=end.direction,
            from_s=from_s,
            to_s=to_s,
            asked_bits=self._timeline.bits(end, from_s, to_s),
            delivered_bits=round(carried_now - carried),
            packets=round((carried_now - carried) / (8 * FRAME_BYTES)),
            backlog_bytes=round(largest / 8),
            busy=waited and waits,
            drops=drops_now - drops,
        )

    def _mark(self, end: End) -> tuple[float, float, int, bool]:
        board = self._network.board
        number = board.number[end]
        board.largest_bits[number] = board.queued_bits[number]
        mark = (
            self._network.clock.now - self._network.t0_s,
            float(board.carried_bits[number]),
            int(board.drops[number]),
            bool(board.queued_bits[number] > 0),
        )
        self._before[end] = mark
        return mark
