"""AdaLag: the density at which the seconds that bytes take and the lag that sparseness costs weigh the same.

What error feedback holds back is applied later. With M = Σ|p − sent| held and m = Σ|sent| leaving in each step, mass
waits M/m steps on average (Little's law), and that is about a/k with an a that hardly depends on k. A run with
density k is at step n where a dense one was at step n − w·a/k, and n of its steps take n·(T₀ + b·k) seconds. So the
time to the progress of n steps of a dense run is

    (n + w·a/k) · (T₀ + b·k),      least at      k = √( w·a·T₀ / (n·b) ).

Nobody knows when training will end: n is the number of steps made so far, as if as many were to come. So k falls like
1/√n, follows the seconds per byte of the network, and is high where bytes cost little.

a is seen in every step (Σ|p| and Σ|sent| are counted). b comes from the communication delay d = α + (seconds for bytes):
α, what a message of no bytes would take, is where the lower convex hull of all (bytes, delay) seen so far meets 0 bytes.
Slow times only lift points above the hull, so that it is known although bandwidth moves.
"""

from __future__ import annotations

from collections import deque
from math import isfinite, sqrt
from statistics import median
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from testbed.control.base import Observation, Watched
from testbed.control.options import Density, Options, read_options
from testbed.errors import ExperimentError

Point = tuple[float, float]
_SMOOTHING = 0.1
"""Weight of a step in the mean of a."""


class AdaLagOptions(Options):
    """Options of ``adalag``."""

    k_max: Density = Field(0.29, description="Largest density.")
    k_min: Density = Field(0.001, description="Smallest density.")
    initial_k: Density = Field(0.1, description="Density of the first step.")
    weight: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        0.125, description="Share of the held mass's waiting time by which training lags (w)."
    )
    recent: Annotated[int, Field(ge=1, le=1000)] = Field(
        9, description="Steps of whose seconds for bytes the median is taken."
    )
    swing: Annotated[float, Field(gt=1.0, le=100.0)] = Field(
        1.5, description="Most that k changes by from step to step, as a factor."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.k_min <= self.initial_k <= self.k_max:
            raise ValueError(
                f"initial_k {self.initial_k} is outside [k_min {self.k_min}, k_max {self.k_max}]"
            )
        return self


class AdaLag:
    """One agent, for one worker. Nothing in it is random."""

    watches: ClassVar[frozenset[Watched]] = frozenset({"memory"})

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options("adalag", AdaLagOptions, options)
        self._steps, self._k = 0, self.options.initial_k
        self._lag: float | None = None
        """a: steps that mass waits, times density."""
        self._hull: list[Point] = []
        """Bytes and seconds, ascending in bytes."""
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=self.options.recent)
        """Density, delay and seconds of the last steps."""

    def density(self) -> float:
        """k for the coming step."""
        return self._k

    def observe(self, seen: Observation) -> None:
        """Take in a step and choose anew. Without ``held`` and ``sent`` (old records) k stays."""
        step_s = seen.delay_s if seen.step_s is None else seen.step_s
        if not (isfinite(seen.delay_s) and isfinite(step_s)):
            raise ExperimentError(
                f"controller 'adalag': step {seen.step} took {step_s} s, {seen.delay_s} s of them "
                "for communication; both must be finite"
            )
        self._steps += 1
        amount = float(seen.bytes_sent + (seen.bytes_received or 0))
        self._hull = lower_hull([*self._hull, (amount, seen.delay_s)])
        self._recent.append((seen.density, seen.delay_s, step_s))
        if seen.held is not None and seen.sent:
            lag = seen.density * seen.held / seen.sent
            old = lag if self._lag is None else self._lag
            self._lag = old + _SMOOTHING * (lag - old)
        if self._lag is not None:
            self._choose(self._lag)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "steps": self._steps,
            "k": self._k,
            "lag": self._lag,
            "hull": [list(point) for point in self._hull],
            "recent": [list(one) for one in self._recent],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        self._steps, self._k, self._lag = state["steps"], state["k"], state["lag"]
        self._hull = [(amount, seconds) for amount, seconds in state["hull"]]
        self._recent.clear()
        self._recent.extend((k, delay_s, step_s) for k, delay_s, step_s in state["recent"])

    def _choose(self, lag: float) -> None:
        """The root of the derivative, within what k may be and may change by."""
        options, empty_s = self.options, intercept(self._hull)
        slope = median((delay_s - empty_s) / k for k, delay_s, _ in self._recent)
        rest_s = median(step_s - delay_s + empty_s for _, delay_s, step_s in self._recent)
        wanted = options.k_max
        if slope > 0:
            wanted = sqrt(options.weight * lag * max(0.0, rest_s) / (self._steps * slope))
        wanted = min(max(wanted, self._k / options.swing), self._k * options.swing)
        self._k = min(max(wanted, options.k_min), options.k_max)


def lower_hull(points: list[Point]) -> list[Point]:
    """The lower convex hull of ``points``, ascending; of those with equal x the lowest."""
    hull: list[Point] = []
    for point in sorted(points):
        if hull and hull[-1][0] == point[0]:
            continue
        while len(hull) > 1 and not _turns_left(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def intercept(hull: list[Point]) -> float:
    """Where the hull's first edge meets x = 0: at least 0, at most its lowest point. 0 for a single point."""
    if len(hull) < 2:
        return 0.0
    (left, low), (right, high) = hull[:2]
    at_zero = low - left * (high - low) / (right - left)
    return min(max(at_zero, 0.0), *(seconds for _, seconds in hull))


def _turns_left(first: Point, second: Point, third: Point) -> bool:
    return (second[0] - first[0]) * (third[1] - first[1]) > (second[1] - first[1]) * (
        third[0] - first[0]
    )
