"""Clocks of hosts against the controller's, from questions and answers as in NTP. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MOST_ERROR_NS = 5_000_000
"""A clock that is known less well, or has moved further during a run, is refused."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One answer. ``ahead_ns``: by how much the host's monotonic clock is ahead, known to
    ``error_ns``, half of the round trip; ``wall_ahead_ns``: the same of its wall clock."""

    ahead_ns: int
    error_ns: int
    wall_ahead_ns: int

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def best(readings: Sequence[ClockReading]) -> ClockReading:
    """The reading of the shortest round trip: its answer cannot be off by more than half of it."""
    return min(readings, key=lambda reading: reading.error_ns)


def moved_ns(before: ClockReading, after: ClockReading) -> int:
    """The most by which two clocks can have moved against each other between two readings."""
    return abs(after.ahead_ns - before.ahead_ns) + before.error_ns + after.error_ns
