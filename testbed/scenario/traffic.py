"""Flows beside the training: when which of them sends. Pure; random times come from each flow's own seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal, NamedTuple

from testbed.scenario.model import Scenario, Traffic


class Burst(NamedTuple):
    """A flow sends from ``start_s`` to ``stop_s`` (after t0; infinite: until the run ends)."""

    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Traffic from node ``source`` to node ``sink``. ``rate_bits``: of UDP while it sends."""

    name: str
    source: str
    sink: str
    kind: Literal["tcp", "udp"]
    rate_bits: int | None
    congestion: str | None
    streams: int
    start_s: float
    stop_s: float
    on_s: float | None = None
    """How long it sends before a pause; None: it never pauses."""
    off_s: float = 0.0
    exponential: bool = False
    """``on_s`` and ``off_s`` are means of exponentially distributed times."""
    seed: int = 0

    def bursts(self) -> Iterator[Burst]:
        """When it sends, by time: the same whenever it is asked. Lazy, and endless if the flow is."""
        if self.on_s is None:
            yield Burst(self.start_s, self.stop_s)
            return
        random = Random(f"{self.seed} {self.name}")
        start = self.start_s
        while start < self.stop_s:
            on, off = self.on_s, self.off_s
            if self.exponential:
                on, off = random.expovariate(1.0) * on, random.expovariate(1.0) * off
            yield Burst(start, min(start + on, self.stop_s))
            start += on + off

    def bursts_until(self, stop_s: float) -> Iterator[Burst]:
        """Bursts that begin before ``stop_s``, cut off there."""
        for burst in self.bursts():
            if burst.start_s >= stop_s:
                return
            yield Burst(burst.start_s, min(burst.stop_s, stop_s))


def flows(scenario: Scenario) -> list[Flow]:
    """The flows of a scenario in wall time, in the order of the file."""
    return [_flow(traffic, scenario.congestion) for traffic in scenario.traffic]


def _flow(traffic: Traffic, congestion: str | None) -> Flow:
    start = float(traffic.at)
    return Flow(
        name=traffic.name,
        source=traffic.from_,
        sink=traffic.to,
        kind=traffic.kind,
        rate_bits=None if traffic.rate is None else int(traffic.rate),
        congestion=(traffic.congestion or congestion) if traffic.kind == "tcp" else None,
        streams=traffic.streams,
        start_s=start,
        stop_s=inf if traffic.for_ is None else start + traffic.for_,
        on_s=None if traffic.on is None else float(traffic.on),
        off_s=float(traffic.off or 0.0),
        exponential=traffic.timing == "exponential",
        seed=traffic.seed,
    )
