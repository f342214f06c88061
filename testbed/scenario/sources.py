"""Where an end's rate comes from: its base, a step, a ramp, a trace. Integers: ns after t0 and bit/s."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, Protocol

NS = 1_000_000_000


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds: sums and remainders of them are exact."""
    return round(seconds * NS)


class Source(Protocol):
    """A rate over time. Piecewise constant."""

    @property
    def period(self) -> int | None:
        """After how many ns it repeats itself; None if it does not."""
        ...

    @property
    def settled(self) -> int:
        """From when on it repeats itself, or stays as it is."""
        ...

    def piece(self, time: int) -> tuple[int, int | None]:
        """The rate at ``time`` and until when it holds (None: for good)."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """One rate from ``settled`` on."""

    rate: int
    settled: int = 0
    period: int | None = None

    def piece(self, time: int) -> tuple[int, int | None]:  # noqa: ARG002
        """See ``Source``."""
        return self.rate, None


@dataclass(frozen=True, slots=True)
class Ramp:
    """From ``start`` to ``stop`` in ``count`` equal steps; the last is reached after ``over`` ns."""

    begin: int
    start: int
    stop: int
    over: int
    count: int
    period: int | None = None

    @property
    def settled(self) -> int:
        """When the ramp has reached its end."""
        return self.begin + self.over

    def piece(self, time: int) -> tuple[int, int | None]:
        """See ``Source``."""
        i = self._step(time)
        if i >= self.count:
            return self.stop, None
        return self.start + round((self.stop - self.start) * i / self.count), self._due(i + 1)

    def _due(self, i: int) -> int:
        return self.begin + self.over * i // self.count

    def _step(self, time: int) -> int:
        """How many steps are done at ``time``; exact, whatever the division left over."""
        i = min(self.count, (time - self.begin) * self.count // self.over)
        return i + 1 if i < self.count and self._due(i + 1) <= time else i


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded rate. ``times`` begin with 0; ``offset`` is where in the trace ``begin`` lies."""

    begin: int
    times: tuple[int, ...]
    rates: tuple[int, ...]
    duration: int
    offset: int
    at_end: Literal["loop", "hold", "stop"]
    base: int

    @property
    def period(self) -> int | None:
        """The trace's duration, if it loops."""
        return self.duration if self.at_end == "loop" else None

    @property
    def settled(self) -> int:
        """At once, if it loops; else when it ends."""
        return self.begin if self.at_end == "loop" else self.begin + self.duration - self.offset

    def piece(self, time: int) -> tuple[int, int | None]:
        """See ``Source``."""
        position = time - self.begin + self.offset
        if position >= self.duration and self.at_end != "loop":
            return (self.rates[-1] if self.at_end == "hold" else self.base), None
        phase = position % self.duration
        i = bisect_right(self.times, phase) - 1
        end = self.times[i + 1] if i + 1 < len(self.times) else self.duration
        return self.rates[i], time - phase + end
