"""What one link direction was asked to carry and what it carried, look by look."""

from __future__ import annotations

from testbed.links.end import ShapedEnd
from testbed.links.fidelity import Look, Record
from testbed.links.htb import Counters
from testbed.record.events import LinkSample


class Sampler:
    """Belongs to the replay's thread. Times are seconds after t0."""

    def __init__(self, shaped: ShapedEnd, rate_bits: int) -> None:
        self.record = Record(rates=[(0.0, rate_bits)])
        self._shaped, self._rate = shaped, rate_bits
        self._asked_bits, self._asked_to_s = 0.0, 0.0
        self._from_s, self._from_asked = 0.0, 0.0
        self._from = self._now = shaped.zero
        self._now_s = 0.0
        self._busy, self._largest = True, 0

    def begin(self, now_s: float) -> None:
        """Take the first look, at t0."""
        self.look(now_s)
        self.record.marks.append((now_s, self._now.bytes))
        self._asked_to_s = now_s
        self._open()

    def ask(self, due_s: float, rate_bits: int) -> None:
        """From ``due_s`` on another rate is asked for; marks what had been delivered by the last look."""
        self._integrate(max(0.0, due_s))
        self._rate = rate_bits
        self.record.rates.append((max(0.0, due_s), rate_bits))
        if self._now_s > self.record.marks[-1][0]:
            self.record.marks.append((self._now_s, self._now.bytes))

    def look(self, now_s: float) -> Counters:
        """Read the counters; note whether a queue stands and how long it is. Raises KernelRefused."""
        self._now, self._now_s = self._shaped.read(), now_s
        self._busy = self._busy and self._now.backlog_bytes > 0
        self._largest = max(self._largest, self._now.backlog_bytes)
        return self._now

    def close(self) -> LinkSample | None:
        """End the sample at the last look, and open the next; None where no time has passed."""
        if self._now_s <= self._from_s:
            return None
        self._integrate(self._now_s)
        sample = LinkSample(
            link=self._shaped.end.link,
            direction=self._shaped.end.direction,
            from_s=self._from_s,
            to_s=self._now_s,
            asked_bits=max(0.0, self._asked_bits - self._from_asked),
            delivered_bits=8 * (self._now.bytes - self._from.bytes),
            packets=self._now.packets - self._from.packets,
            backlog_bytes=self._largest,
            busy=self._busy,
            drops=self._shaped.drops(self._now) - self._drops,
        )
        self.record.looks.append(
            Look(sample.from_s, sample.to_s, sample.asked_bits, sample.delivered_bits, sample.busy)
        )
        if self._now_s > self.record.marks[-1][0]:
            self.record.marks.append((self._now_s, self._now.bytes))
        self._open()
        return sample

    def _open(self) -> None:
        self._from_s, self._from, self._from_asked = self._now_s, self._now, self._asked_bits
        self._busy, self._largest = self._now.backlog_bytes > 0, self._now.backlog_bytes
        self._drops = self._shaped.drops(self._now)

    def _integrate(self, to_s: float) -> None:
        """Bring the asked bits to a time; back a little where a change is taken in late."""
        self._asked_bits += self._rate * (to_s - self._asked_to_s)
        self._asked_to_s = to_s
