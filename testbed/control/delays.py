"""What delay-aware rules know of the past: smoothed delay and deviation, and a window of the newest delays.

    v ← 3/4·v + 1/4·|d − s|        s ← 7/8·s + 1/8·d        (the weights of TCP's timer, RFC 6298, section 2)

As there, v is changed first, against the s of before, and the first delay sets s = d and v = d/2. Window: the
newest W delays, the newest of all included. All in the unit of the delays: seconds, or seconds per byte.
"""

from __future__ import annotations

from collections import deque
from math import fsum, hypot, isfinite, sqrt
from typing import Any, Literal

from testbed.control.base import Observation
from testbed.errors import ExperimentError

Unit = Literal["seconds", "per_byte"]


class Delays:
    """The delays of one worker, newest last."""

    def __init__(self, window: int) -> None:
        self.window: deque[float] = deque(maxlen=window)
        self.smoothed = 0.0
        """s."""
        self.before = 0.0
        """s as it was before the newest delay."""
        self.deviation = 0.0
        """v."""

    def take(self, delay: float) -> None:
        """Take in the next one."""
        if self.window:
            self.before = self.smoothed
            self.deviation += (abs(delay - self.before) - self.deviation) / 4
            self.smoothed += (delay - self.before) / 8
        else:
            self.before = self.smoothed = delay
            self.deviation = delay / 2
        self.window.append(delay)

    @property
    def newest(self) -> float:
        """d."""
        return self.window[-1]

    @property
    def least(self) -> float:
        """d_min of the window."""
        return min(self.window)

    @property
    def greatest(self) -> float:
        """d_max of the window."""
        return max(self.window)

    def spread(self) -> tuple[float, float]:
        """Mean and population standard deviation of the window.

        Taken relative to the oldest delay, so that equal ones deviate by exactly 0.
        """
        oldest, many = self.window[0], len(self.window)
        mean = oldest + fsum((delay - oldest) / many for delay in self.window)
        return mean, hypot(*((delay - mean) / sqrt(many) for delay in self.window))

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {"s": self.smoothed, "v": self.deviation, "window": list(self.window)}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.smoothed, self.deviation = float(state["s"]), float(state["v"])
        self.window = deque(state["window"], maxlen=self.window.maxlen)


def measured(controller: str, seen: Observation, unit: Unit = "seconds") -> float:
    """The delay of a step in ``unit``. Raises ExperimentError for one that is negative or not finite."""
    if not (isfinite(seen.delay_s) and seen.delay_s >= 0):
        raise ExperimentError(
            f"controller {controller!r}: step {seen.step} has delay {seen.delay_s} s; it must be "
            "finite and not negative"
        )
    return seen.delay_s / max(1, seen.bytes_sent) if unit == "per_byte" else seen.delay_s
