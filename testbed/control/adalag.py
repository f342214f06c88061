"""AdaLag: the density at which the time that bytes take and the lag that sparseness costs weigh the same.

What error feedback holds back is applied later. With M = Σ|p − sent| held and m = Σ|sent| leaving in each step, mass
waits M/m steps on average (Little's law), and that is about a/k with an a that hardly depends on k. A run with
density k is at step n where a dense one was at step n − w·a/k, and has taken n·T(k) for it, T = T₀ + b·k. So the
time to a given progress, n steps of a dense run, is

    (n + w·a/k) · (T₀ + b·k),      least at      k = √( w·a·T₀ / (n·b) ).

Nobody knows when training will end; n is taken to be the steps made so far (as much is expected to come as has been).
So k falls like 1/√n, follows the seconds per byte of the network, and is high where bytes cost nothing.

a is measured in every step; b by raising and lowering k in turn by ``dither`` and looking at what it does to the
step's time: the slope, whatever waits, delays and other people's bytes are in T₀.
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


class AdaLagOptions(Options):
    """Options of ``adalag``."""

    k_max: Density = Field(0.29, description="Largest density, and the first one.")
    k_min: Density = Field(0.001, description="Smallest density.")
    weight: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        0.5, description="Share of the held mass's waiting time by which training lags (w)."
    )
    dither: Annotated[float, Field(gt=0.0, lt=0.5)] = Field(
        0.2, description="k is by this share higher and lower in turn."
    )
    pairs: Annotated[int, Field(ge=1, le=1000)] = Field(
        9, description="Pairs of a higher and a lower k of which the slope's median is taken."
    )
    recent: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="Steps that say what bytes take now."
    )
    swing: Annotated[float, Field(gt=1.0, le=100.0)] = Field(
        1.3, description="Most that k changes by in two steps, as a factor."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.k_min > self.k_max:
            raise ValueError(f"k_min {self.k_min} is above k_max {self.k_max}")
        return self


class AdaLag:
    """One agent, for one worker. Nothing in it is random."""

    watches: ClassVar[frozenset[Watched]] = frozenset({"memory"})

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options("adalag", AdaLagOptions, options)
        self._steps = 0
        self._middle = self.options.k_max
        self._seen: deque[tuple[float, float]] = deque(maxlen=2 * self.options.pairs)
        """Density and seconds of the last steps, oldest first."""
        self._lag: float | None = None
        """a: steps that mass waits, times density."""

    def density(self) -> float:
        """k for the coming step: above the middle in odd steps, below it in even ones."""
        sign = 1 if self._steps % 2 == 0 else -1
        return self._within(self._middle * (1 + sign * self.options.dither))

    def observe(self, seen: Observation) -> None:
        """Take in a step; after every second one, choose anew."""
        self._steps += 1
        self._seen.append((seen.density, self._seconds(seen)))
        if seen.held is not None and seen.sent:
            lag = seen.density * seen.held / seen.sent
            self._lag = lag if self._lag is None else 0.9 * self._lag + 0.1 * lag
        if self._steps % 2 == 0:
            self._choose()

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "steps": self._steps,
            "middle": self._middle,
            "seen": [list(one) for one in self._seen],
            "lag": self._lag,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken."""
        self._steps, self._middle = int(state["steps"]), float(state["middle"])
        self._seen.clear()
        self._seen.extend((float(k), float(seconds)) for k, seconds in state["seen"])
        self._lag = None if state["lag"] is None else float(state["lag"])

    def _choose(self) -> None:
        """The root, within what k may change by."""
        slope, rest_s = self._slope()
        if self._lag is None:
            return
        swing = self.options.swing
        wanted = self.options.k_max
        if slope > 0:
            now = slope * self._dearer(slope, rest_s)
            wanted = sqrt(self.options.weight * self._lag * rest_s / (self._steps * now))
        self._middle = self._within(
            min(max(wanted, self._middle / swing), self._middle * swing)
        )

    def _slope(self) -> tuple[float, float]:
        """b and T₀, in seconds: what a density of 1 more would take, and what a step takes without bytes."""
        pairs = list(self._seen)
        slopes = [
            (first_s - second_s) / (first - second)
            for (first, first_s), (second, second_s) in zip(pairs[::2], pairs[1::2], strict=True)
            if first != second
        ]
        slope = median(slopes) if slopes else 0.0
        rests = [max(0.1 * seconds, seconds - max(0.0, slope) * k) for k, seconds in pairs]
        return slope, median(rests)

    def _dearer(self, slope: float, rest_s: float) -> float:
        """Seconds of bytes in the last few steps over what they would take by ``slope``; 1 if lost in noise."""
        off = [seconds - rest_s - slope * k for k, seconds in self._seen]
        noise = median(abs(one) for one in off)
        recent = list(self._seen)[-self.options.recent :]
        took = median(max(0.0, seconds - rest_s) for _, seconds in recent)
        expected = median(slope * k for k, _ in recent)
        return (took + noise) / (expected + noise) if expected + noise > 0 else 1.0

    def _within(self, k: float) -> float:
        return min(max(k, self.options.k_min), self.options.k_max)

    def _seconds(self, seen: Observation) -> float:
        seconds = seen.delay_s if seen.step_s is None else seen.step_s
        if not isfinite(seconds):
            raise ExperimentError(f"controller 'adalag': step {seen.step} took {seconds} s")
        return seconds
