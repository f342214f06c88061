"""Samples of a link direction: what was asked, carried and held, look by look."""

from __future__ import annotations

from math import inf

from testbed.links.netem_stage import NetemStage
from testbed.links.replay.delivery_report import DeliveryLog, Outages
from testbed.links.replay.interval_errors import Mismatch, ReadBack, Sample, served_at
from testbed.links.shaper import ShapedQueue
from testbed.links.tc.parameters import LinkPace, pace
from testbed.records.events import Event, LinkMismatch, LinkSample
from testbed.scenario.link_state import FRAME_BYTES, LinkState

WATCHED_S = 0.05
"""Looks are 20 ms apart (``replay.LOOK_NS``); nobody vouches for what is beyond so much between two
of them."""

LIMIT_LOOKS = 50
"""Looks between two at which queue length and line are read back: about a second."""

FOLD_S, FOLD_SAMPLES = 60.0, 10
"""Age from which data are folded, and the samples between two folds. A change that comes so late
has no longer any part in earlier bins' errors; its lateness is far beyond what a verdict allows."""


class LinkSampler:
    """Belongs to the replay's thread. Times are seconds after t0. ``phase``: which looks read queue
    and line back.

    ``bundle_bytes``: the most that leaves at once. A link counts as busy where a queue stood at
    every look; ``gapped``: where none could have run dry between two, either. Messages that are
    shorter than the time between looks may leave gaps that nobody sees, and yet a queue at most
    looks.
    """

    def __init__(
        self,
        shaped: ShapedQueue,
        shape: LinkState,
        phase: int = 0,
        line: NetemStage | None = None,
        *,
        bundle_bytes: int = FRAME_BYTES,
        gapped: bool = False,
    ) -> None:
        self._gapped = gapped
        self._outages = Outages()
        self.record = DeliveryLog(
            bundle_bytes=bundle_bytes + shape.overhead_bytes,
            rates=[(0.0, shape.rate_bits)],
            outages=self._outages.outages,
        )
        self._shaped, self._shape, self._line, self._looks = shaped, shape, line, phase
        self._rate, self._limit, self._delay = ReadBack("rate"), ReadBack("queue"), ReadBack("line")
        self._untold: list[Mismatch] = []
        self._asked_bits, self._asked_to_s, self._began_s = 0.0, 0.0, 0.0
        self._from_s, self._from_asked, self._from_charged = 0.0, 0.0, 0
        self._from = self._now = self._before = shaped.zero
        self._now_s, self._charged, self._charged_before = 0.0, 0, 0
        self._charges: list[tuple[float, int]] = []
        self._busy, self._largest, self._gap_s = True, 0, 0.0
        self._samples = phase  # links take turns

    def begin(self, now_s: float) -> None:
        """Take the first look, at t0."""
        self._now_s = now_s
        self.look(now_s, self._shape)
        self.record.marks.append((now_s, self._charged))
        self._asked_to_s = self._began_s = now_s
        if not self._shape.rate_bits:
            self._outages.begin(now_s, self._charged, 0)
        self._open()

    def ask(self, due_s: float, shape: LinkState) -> None:
        """From ``due_s`` on another shape is asked for, which the last look has seen in force."""
        due_s = max(0.0, due_s)
        self._integrate(max(due_s, self._began_s))
        before, self._shape = self._shape.rate_bits, shape
        self.record.rates.append((due_s, shape.rate_bits))
        self._mark()
        if before and not shape.rate_bits:
            self._outages.begin(due_s, self._charged, before)
        elif shape.rate_bits and not before:
            last = self._charged_before, self._before.backlog_bytes
            self._outages.end(due_s, last, (self._charged, self._now_s), shape.rate_bits)
            self._watch_outage()

    def look(self, now_s: float, shape: LinkState, adjusted: LinkPace | None = None) -> None:
        """Read counters and settings; the kernel has been asked for ``shape``. Raises
        KernelRefused.

        ``adjusted``: what the class was set to instead of the rate's plain setting.
        """
        self._before, self._charged_before = self._now, self._charged
        self._now = self._shaped.read()
        gap_s, self._now_s = now_s - self._now_s, now_s
        packets = self._now.packets - self._before.packets
        self._charged += self._now.bytes - self._before.bytes + packets * self._shape.overhead_bytes
        self._gap_s = max(self._gap_s, gap_s)
        self.record.unwatched_s += max(0.0, gap_s - WATCHED_S)
        self._busy = self._busy and self._stood(gap_s)
        self._largest = max(self._largest, self._now.backlog_bytes)
        self._charges.append((now_s, self._charged))
        self._read_back(shape, adjusted)
        self._watch_outage()

    def _stood(self, gap_s: float) -> bool:
        """Return whether a queue stood since the last look, ``gap_s`` ago."""
        least_bits = self._shape.rate_bits * gap_s if self._gapped else 0.0
        return self._now.backlog_bytes > 0 and 8 * self._before.backlog_bytes >= least_bits

    def resuming(self, now_s: float) -> bool:
        """Return whether an outage has just ended, so that looks should follow closely."""
        return self._outages.resuming(now_s)

    def close(self) -> list[Event]:
        """End the sample at the last look, and open the next; none where no time passed."""
        where = self._shaped.end
        events: list[Event] = [
            LinkMismatch(where.link, where.direction, **wrong._asdict()) for wrong in self._untold
        ]
        self._untold.clear()
        if self._now_s <= self._from_s:
            return events
        self._integrate(self._now_s)
        sample = LinkSample(
            link=where.link,
            direction=where.direction,
            from_s=self._from_s,
            to_s=self._now_s,
            asked_bits=max(0.0, self._asked_bits - self._from_asked),
            delivered_bits=8 * (self._charged - self._from_charged),
            packets=self._now.packets - self._from.packets,
            backlog_bytes=self._largest,
            busy=self._busy,
            drops=self._shaped.drops(self._now) - self._drops,
            longest_gap_s=self._gap_s,
            looks=self._looks_within(),
        )
        self.record.looks.append(
            Sample(
                sample.from_s, sample.to_s, sample.asked_bits, sample.delivered_bits, sample.busy
            )
        )
        self.record.largest_backlog_bytes = max(self.record.largest_backlog_bytes, self._largest)
        self._mark()
        self._open()
        self._samples += 1
        if self._samples % FOLD_SAMPLES == 0:
            since_s = self._outages.resumed_s
            self.record.fold(self._now_s - FOLD_S, inf if since_s is None else since_s)
        return [*events, sample]

    def end(self) -> list[Event]:
        """No more looks: what is still wrong ends with the last one."""
        for value in (self._rate, self._limit, self._delay):
            self._note(value.end(self._now_s))
        self._outages.close(self._now_s, self._charged)
        return self.close()

    def _read_back(self, shape: LinkState, adjusted: LinkPace | None) -> None:
        """Compare the kernel's values with ``shape``; in an outage the rate means nothing."""
        if shape.rate_bits:
            requested = 8 * (adjusted or pace(shape.rate_bits)).rate_bytes
            self._note(self._rate.compare(self._now_s, requested, 8 * self._now.rate_bytes))
        else:
            self._note(self._rate.end(self._now_s))
        self._looks += 1
        if self._looks % LIMIT_LOOKS == 0:
            requested = 0 if shape.drop and not shape.rate_bits else shape.queue_bytes
            self._note(self._limit.compare(self._now_s, requested, self._shaped.held_limit()))
            if self._line is not None:
                self._note(self._delay.compare(self._now_s, *self._line.look()))

    def _note(self, mismatch: Mismatch | None) -> None:
        if mismatch is not None:
            self.record.note(mismatch)
            self._untold.append(mismatch)

    def _watch_outage(self) -> None:
        self._outages.look(self._now_s, self._charged, self._due_s)

    def _due_s(self, from_s: float, size: int) -> float:
        """When so many bytes have been served, and the one bundle at least that was on its way, or
        has left, before them."""
        return served_at(self.record.rates, from_s, 8 * max(size, self.record.bundle_bytes))

    def _mark(self) -> None:
        if self._now_s > self.record.marks[-1][0]:
            self.record.marks.append((self._now_s, self._charged))

    def _looks_within(self) -> tuple[tuple[float, int], ...]:
        """Return bits at each look but the last, where a straight line would be wrong."""
        if self._busy or self._charged == self._from_charged:
            return ()
        return tuple(
            (round(at_s, 4), 8 * (charged - self._from_charged))
            for at_s, charged in self._charges[:-1]
            if self._from_s < at_s < self._now_s
        )

    def _open(self) -> None:
        self._charges.clear()
        self._from_s, self._from, self._from_asked = self._now_s, self._now, self._asked_bits
        self._from_charged, self._gap_s = self._charged, 0.0
        self._busy, self._largest = self._now.backlog_bytes > 0, self._now.backlog_bytes
        self._drops = self._shaped.drops(self._now)

    def _integrate(self, to_s: float) -> None:
        """Bring the asked bits to a time; back a little where a change is taken in late."""
        self._asked_bits += self._shape.rate_bits * (to_s - self._asked_to_s)
        self._asked_to_s = to_s
