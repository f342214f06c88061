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

from abc import ABC, abstractmethod
from collections import deque
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import Field, model_validator

from testbed.control.base import Density, Observation, Share, check_initial, read_options
from testbed.control.delay_aware import measured
from testbed.registry import Options


class AimdOptions(Options):
    """Options that both rules have."""

    initial_k: Density = Field(0.75, description="Density of the first step.")
    k_max: Density = Field(1.0, description="Largest density.")
    k_min: Density = Field(0.005, description="Smallest density.")
    increase: Share = Field(0.001, description="Added to k where the network is free.")
    decrease: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.95, description="Factor of k where it is not."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_initial(self.initial_k, self.k_min, self.k_max)
        return self


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


class Aimd(ABC, Generic[Given]):
    """One agent, for one worker; without randomness."""

    name: str
    model: type[Given]

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options(self.name, self.model, options)
        self._k = self.options.initial_k

    def density(self) -> float:
        """k for the coming step, in [k_min, k_max]."""
        return self._k

    def observe(self, seen: Observation) -> None:
        """Take in a step, and raise or lower k, or hold it where nothing can be told yet."""
        free = self._free(seen, measured(self.name, seen))
        if free is None:
            return
        options = self.options
        k = self._k + options.increase if free else self._k * options.decrease
        self._k = min(max(k, options.k_min), options.k_max)

    @abstractmethod
    def _free(self, seen: Observation, delay_s: float) -> bool | None:
        """Return whether the network has room; None: unknown."""

    def state(self) -> dict[str, Any]:
        """k."""
        return {"k": self._k}

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        self._k = float(state["k"])


class AimdDelay(Aimd[AimdDelayOptions]):
    """k rises while smoothed delay falls."""

    name, model = "aimd-delay", AimdDelayOptions
    _smoothed: float | None = None

    def _free(self, seen: Observation, delay_s: float) -> bool | None:
        del seen
        before = self._smoothed
        if before is None:
            self._smoothed = delay_s
            return None
        self._smoothed = before + self.options.weight * (delay_s - before)
        return self._smoothed < before

    def state(self) -> dict[str, Any]:
        """Also the smoothed delay in seconds."""
        return {**super().state(), "smoothed": self._smoothed}

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        super().load(state)
        self._smoothed = state["smoothed"]


class AimdBdp(Aimd[AimdBdpOptions]):
    """k rises while messages are smaller than the bandwidth-delay product."""

    name, model = "aimd-bdp", AimdBdpOptions

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._now_s = 0.0
        self._samples: deque[tuple[float, int, float]] = deque()
        """When it was taken in, bytes sent, delay in seconds."""

    def bdp(self) -> float:
        """Bandwidth-delay product of the window in bytes."""
        bandwidth = max(size / delay_s for _, size, delay_s in self._samples)
        return bandwidth * min(delay_s for _, _, delay_s in self._samples)

    def _free(self, seen: Observation, delay_s: float) -> bool | None:
        self._now_s += delay_s if seen.step_s is None else seen.step_s
        if delay_s == 0:
            return None
        self._samples.append((self._now_s, seen.bytes_sent, delay_s))
        while self._now_s - self._samples[0][0] > self.options.window_s:
            self._samples.popleft()
        return seen.bytes_sent <= self.options.share * self.bdp()

    def state(self) -> dict[str, Any]:
        """Also the time in seconds and the samples of the window."""
        samples = [list(sample) for sample in self._samples]
        return {**super().state(), "now_s": self._now_s, "samples": samples}

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        super().load(state)
        self._now_s = float(state["now_s"])
        self._samples = deque((at, size, delay) for at, size, delay in state["samples"])
