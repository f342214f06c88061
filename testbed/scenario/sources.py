"""Where an end's rate comes from: its base, a step, a ramp, a trace. Integers: ns after t0 and bit/s."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

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

    def pieces(self, start: int, stop: int | None) -> Iterator[tuple[int, int]]:
        """``start`` and the rate there, then when and to what it is set anew, before ``stop``. Lazy."""
        ...

    def count(self, start: int, stop: int) -> int:
        """How many ``pieces`` there are, at most."""
        ...

    def later(self, by: int) -> Source:
        """The same, but everything later by ``by`` ns."""
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

    def pieces(self, start: int, stop: int | None) -> Iterator[tuple[int, int]]:  # noqa: ARG002
        """See ``Source``."""
        yield start, self.rate

    def count(self, start: int, stop: int) -> int:  # noqa: ARG002
        """See ``Source``."""
        return 1

    def later(self, by: int) -> Constant:
        """See ``Source``."""
        return Constant(self.rate, self.settled + by)


@dataclass(frozen=True, slots=True)
class Ramp:
    """From ``start`` to ``stop`` in ``steps`` equal steps; the last is reached after ``over`` ns."""

    begin: int
    start: int
    stop: int
    over: int
    steps: int
    period: int | None = None

    @property
    def settled(self) -> int:
        """When the ramp has reached its end."""
        return self.begin + self.over

    def piece(self, time: int) -> tuple[int, int | None]:
        """See ``Source``."""
        i = self._step(time)
        if i >= self.steps:
            return self.stop, None
        return self.start + round((self.stop - self.start) * i / self.steps), self._due(i + 1)

    def pieces(self, start: int, stop: int | None) -> Iterator[tuple[int, int]]:
        """See ``Source``."""
        time: int | None = start
        while time is not None and (stop is None or time < stop):
            rate, until = self.piece(time)
            yield time, rate
            time = until

    def count(self, start: int, stop: int) -> int:
        """See ``Source``."""
        return 1 + self._step(stop) - self._step(start)

    def later(self, by: int) -> Ramp:
        """See ``Source``."""
        return Ramp(self.begin + by, self.start, self.stop, self.over, self.steps)

    def _due(self, i: int) -> int:
        return self.begin + self.over * i // self.steps

    def _step(self, time: int) -> int:
        """How many steps are done at ``time``; exact, whatever the division left over."""
        i = min(self.steps, (time - self.begin) * self.steps // self.over)
        return i + 1 if i < self.steps and self._due(i + 1) <= time else i


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded rate, again and again. ``times`` (ns) begin with 0, increase, and end before ``period``.

    ``begin`` is where in time its first point lies, which may be long before it rules.
    """

    begin: int
    times: tuple[int, ...]
    rates: tuple[int, ...]
    period: int

    @property
    def settled(self) -> int:
        """It repeats itself from the beginning."""
        return self.begin

    def piece(self, time: int) -> tuple[int, int | None]:
        """See ``Source``."""
        phase = (time - self.begin) % self.period
        i = bisect_right(self.times, phase)
        end = self.times[i] if i < len(self.times) else self.period
        return self.rates[i - 1], time - phase + end

    def pieces(self, start: int, stop: int | None) -> Iterator[tuple[int, int]]:
        """See ``Source``."""
        phase = (start - self.begin) % self.period
        lap, i = start - phase, bisect_right(self.times, phase)
        yield start, self.rates[i - 1]
        while stop is None or lap < stop:
            last = len(self.times)
            if stop is not None and stop - lap < self.period:
                last = bisect_left(self.times, stop - lap)
            for j in range(i, last):
                yield lap + self.times[j], self.rates[j]
            lap, i = lap + self.period, 0

    def count(self, start: int, stop: int) -> int:
        """See ``Source``."""
        return 1 + self._passed(stop) - self._passed(start)

    def later(self, by: int) -> Trace:
        """See ``Source``."""
        return Trace(self.begin + by, self.times, self.rates, self.period)

    def _passed(self, time: int) -> int:
        laps, phase = divmod(time - self.begin, self.period)
        return laps * len(self.times) + bisect_right(self.times, phase)
