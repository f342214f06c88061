"""Additive increase, multiplicative decrease, in the style of NetSenseML (arXiv 2506.16235).

    aimd-delay   s' = s + 0.1·(d − s);  s' < s: k ← k + 0.001, else k ← 0.95·k
    aimd-bdp     over the last 5 s: BDP = greatest of (bytes ÷ delay) × least delay;
                 bytes > 0.9·BDP: k ← 0.95·k, else k ← k + 0.001

k starts at 0.75 and stays in [0.005, 1]. Rules and constants are those of public code of this
design; that it is the paper's is our inference. Neither limit absorbs: a step at k = 1 is measured
like any other, and the next decision may lower k (that code sends dense gradients another way, and
never measures again).

Choices of ours: the first delay sets s and leaves k, as there is nothing before it. Equal counts as
not less. A sample is in the window up to an age of 5 s, the newest always. Time is the sum of
``step_s``, or of delays where that is None. A step with delay 0 tells of no bandwidth: ``aimd-bdp``
leaves it out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Annotated, Any, TypeVar

from pydantic import Field

from testbed.control.base import Controller, Density, DensityLimits, Observation, Share
from testbed.control.delay_aware import measured


class AimdOptions(DensityLimits):
    """Options that both rules have."""

    initial_k: Density = Field(0.75, description="Density of the first step.")
    k_max: Density = Field(1.0, description="Largest density.")
    k_min: Density = Field(0.005, description="Smallest density.")
    increase: Share = Field(0.001, description="Added to k where the network is free.")
    decrease: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.95, description="Factor of k where it is not."
    )


class AimdDelayOptions(AimdOptions):
    """Options of ``aimd-delay``."""

    weight: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.1, description="Of the newest delay in the smoothed one."
    )


class AimdBdpOptions(AimdOptions):
    """Options of ``aimd-bdp``."""

    window_s: Annotated[float, Field(gt=0.0)] = Field(
        5.0, description="Seconds of model time that bandwidths and delays are looked at."
    )
    share: Annotated[float, Field(gt=0.0)] = Field(
        0.9, description="Of the bandwidth-delay product that a message may have."
    )


Given = TypeVar("Given", bound=AimdOptions)


class Aimd(Controller[Given]):
    """One for each worker; without randomness."""

    def observe(self, observed: Observation) -> None:
        """Take in a step, and raise or lower k, or hold it where nothing can be told yet."""
        free = self._free(observed, measured(self, observed))
        if free is None:
            return
        options = self.options
        self._k = options.clipped(
            self._k + options.increase if free else self._k * options.decrease
        )

    @abstractmethod
    def _free(self, observed: Observation, delay_s: float) -> bool | None:
        """Return whether the network has room; None: unknown."""


class AimdDelay(Aimd[AimdDelayOptions]):
    """k rises while smoothed delay falls."""

    name, model = "aimd-delay", AimdDelayOptions
    carried = {"k": "_k", "smoothed": "_smoothed"}
    _smoothed: float | None = None
    """Seconds."""

    def _free(self, observed: Observation, delay_s: float) -> bool | None:
        del observed
        before = self._smoothed
        if before is None:
            self._smoothed = delay_s
            return None
        self._smoothed = before + self.options.weight * (delay_s - before)
        return self._smoothed < before


class AimdBdp(Aimd[AimdBdpOptions]):
    """k rises while messages are smaller than the bandwidth-delay product."""

    name, model = "aimd-bdp", AimdBdpOptions
    carried = {"k": "_k", "now_s": "_now_s", "samples": "_samples"}

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._now_s = 0.0
        self._samples: deque[tuple[float, int, float]] = deque()
        """When it was taken in, bytes sent, delay in seconds."""

    def bdp(self) -> float:
        """Bandwidth-delay product of the window in bytes."""
        bandwidth = max(size / delay_s for _, size, delay_s in self._samples)
        return bandwidth * min(delay_s for _, _, delay_s in self._samples)

    def _free(self, observed: Observation, delay_s: float) -> bool | None:
        self._now_s += delay_s if observed.step_s is None else observed.step_s
        if delay_s == 0:
            return None
        self._samples.append((self._now_s, observed.bytes_sent, delay_s))
        while self._now_s - self._samples[0][0] > self.options.window_s:
            self._samples.popleft()
        return observed.bytes_sent <= self.options.share * self.bdp()
