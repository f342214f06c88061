"""What links record of a synchronous job, by calculation: computation, then so many bytes at whatever rate there is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from random import Random
from typing import Any

from testbed.records.events import LinkSample

TICK_S = 0.001
NODES = ("worker-0", "worker-1")
Rate = Callable[[float], float]
"""Mbit/s at a time."""


def even(_: float) -> float:
    """50 Mbit/s."""
    return 50.0


def swinging(time_s: float) -> float:
    """10 to 110 Mbit/s, another every second."""
    return 60 + 50 * math.sin(0.9 * math.floor(time_s))


class Links:
    """Links that all carry the same at the same time."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self.carried: list[float] = []
        self.asked: list[float] = []

    @property
    def now_s(self) -> float:
        """Seconds after t0."""
        return len(self.carried) * TICK_S

    def compute(self, seconds: float) -> None:
        """Carry nothing."""
        for _ in range(round(seconds / TICK_S)):
            self._tick(0.0)

    def send(self, megabytes: float) -> None:
        """Carry so much as fast as can be."""
        left = megabytes * 8e6
        while left > 0:
            left -= self._tick(left)

    def samples(self, sample_s: float = 0.1, look_s: float | None = None) -> list[dict[str, Any]]:
        """Of all directions of all links; with what was seen every ``look_s`` in between."""
        ticks = round(sample_s / TICK_S)
        between = 0 if look_s is None else round(look_s / TICK_S)

        def looks(at: int) -> range:
            return range(at + between, at + ticks, between) if between else range(0)

        carried, asked = ([0.0, *accumulate(of)] for of in (self.carried, self.asked))
        return [
            LinkSample(
                link, direction, at * TICK_S, (at + ticks) * TICK_S, asked[at + ticks] - asked[at],
                round(carried[at + ticks] - carried[at]), 0, 0, False, 0, 0.02,
                tuple((tick * TICK_S, round(carried[tick] - carried[at])) for tick in looks(at)),
            ).to_json()
            for at in range(0, len(self.carried) - ticks, ticks)
            for link in NODES
            for direction in ("up", "down")
        ]  # fmt: skip

    def _tick(self, wanted: float) -> float:
        room = self._rate(self.now_s) * 1e6 * TICK_S
        self.carried.append(min(room, wanted))
        self.asked.append(room)
        return self.carried[-1]


def synchronous(rate: Rate, computations_s: Iterable[float], megabytes: float) -> tuple[Links, list[float]]:  # fmt: skip
    """Steps of one computation and one exchange each; when the first begins and each ends. Something else is before."""
    links = Links(rate)
    links.send(1.7 * megabytes)  # parameters, once
    ends = [links.now_s]
    for seconds in computations_s:
        links.compute(seconds)
        links.send(megabytes)
        ends.append(links.now_s)
    links.compute(1.0)
    return links, ends


def irregular(rate: Rate, count: int, rng: Random) -> Links:
    """Pauses and messages of random lengths: no steps."""
    links = Links(rate)
    for _ in range(count):
        links.compute(rng.expovariate(2.0))
        links.send(2 * rng.expovariate(1.0))
    return links


def apart(rate: Rate, count: int, rng: Random) -> list[dict[str, Any]]:
    """Three links, each with irregular traffic of its own: records with looks."""
    return [
        {**sample, "link": f"worker-{number}"}
        for number in range(3)
        for sample in irregular(rate, count, Random(rng.random())).samples(look_s=0.02)
        if sample["link"] == NODES[0]
    ]
