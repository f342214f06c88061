"""From the numbers of a file to a ``RateTrace``, with the line to blame when they make none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from testbed.errors import InputError
from testbed.traces.trace import MAX_POINTS, RateTrace
from testbed.units import LARGEST


@dataclass(frozen=True, slots=True)
class Source:
    """A trace file that has been read: ``path`` as it was given, and its text."""

    path: str
    text: str

    def lines(self) -> list[tuple[int, str]]:
        """Number and content of every line that is neither blank nor a comment."""
        numbered = enumerate(self.text.splitlines(), start=1)
        return [
            (n, line.strip()) for n, line in numbered if line.strip() and line.lstrip()[0] != "#"
        ]

    def error(self, line: int | None, message: str, hint: str | None = None) -> InputError:
        """An error at ``line``, ready to be raised."""
        return InputError(message, where=f"{self.path}:{line}" if line else self.path, hint=hint)


class Point(NamedTuple):
    """From ``time_s`` on: ``rate_bits`` (not yet rounded). ``line`` is where it was written."""

    line: int
    time_s: float
    rate_bits: float


def number(source: Source, line: int, text: object, what: str) -> float:
    """``text`` as a finite number that is not negative. Raises InputError."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        given = str(text)[:60] if isinstance(text, str) else "this"
        raise source.error(line, f"{given!r} is not a number", f"Here should be {what}") from None
    if not math.isfinite(value) or isinstance(text, bool):
        raise source.error(line, f"{text!r} is not a finite number", f"Here should be {what}")
    if value < 0:
        raise source.error(line, f"{what} is negative: {text}", "Zero is the least (an outage)")
    return value


def build(source: Source, points: list[Point], duration_s: float | None = None) -> RateTrace:
    """A trace that begins with the first point, whatever its time.

    Without ``duration_s`` the last point lasts as long as the one before it; a single one, a second.
    Raises InputError when there is no point, or times do not increase.
    """
    if not points:
        raise source.error(
            None, "the trace has no points", "One line with a time and a rate is enough"
        )
    if len(points) > MAX_POINTS:
        raise source.error(
            points[MAX_POINTS].line, f"more than {MAX_POINTS} points", "Use a part of it"
        )
    _check_order(source, points)
    start = points[0].time_s
    times = tuple(point.time_s - start for point in points)
    last = times[-1] - times[-2] if len(times) > 1 else 1.0
    end = times[-1] + last if duration_s is None else duration_s
    if end <= times[-1]:
        raise source.error(
            points[-1].line, f"the trace lasts {end:g} s but this point begins at {times[-1]:g} s"
        )
    return RateTrace(times, tuple(round(point.rate_bits) for point in points), end, source.path)


_LONGEST_S = 1e9
"""About thirty years."""


def _check_order(source: Source, points: list[Point]) -> None:
    before: Point | None = None
    for point in points:
        if before and point.time_s <= before.time_s:
            raise source.error(
                point.line,
                f"time {point.time_s:g} s does not come after {before.time_s:g} s of line {before.line}",
                "Times must increase from line to line",
            )
        if point.time_s > _LONGEST_S:
            raise source.error(point.line, f"time {point.time_s:g} s is too large")
        if point.rate_bits > LARGEST:
            raise source.error(point.line, f"rate {point.rate_bits:g} bit/s is too large")
        before = point
