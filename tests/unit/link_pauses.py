"""What links record of a synchronous job, by calculation: computation, then so many bytes at whatever rate there is;
and of two and a half seconds of a real job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from random import Random
from typing import Any

from testbed.records.events import LinkSample

TICK_S = 0.001
LOOK_S = 0.02
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


def ring(megabytes: float, rates: list[tuple[float, float]], compute_s: float, steps: int = 40) -> tuple[list[dict[str, Any]], list[float]]:  # fmt: skip
    """Records of an all-reduce after each computation, in two segments; when each ends. ``rates``: up and down of each
    node, Mbit/s."""
    nodes, rng = len(rates), Random(1)
    bits = megabytes * 8e6 / nodes / 2
    sent: dict[tuple[int, str], list[tuple[float, float]]] = {(node, direction): [] for node in range(nodes) for direction in ("up", "down")}  # fmt: skip

    def carry(end: tuple[int, str], at_s: float) -> tuple[float, float]:
        begun_s = max(at_s, sent[end][-1][1] if sent[end] else 0.0)
        sent[end].append((begun_s, begun_s + bits / 1e6 / rates[end[0]][end[1] == "down"]))
        return sent[end][-1]

    ready, ends = [0.0] * nodes, []
    for _ in range(steps):
        had = [[at_s + compute_s * rng.uniform(0.98, 1.02)] * 2 for at_s in ready]
        for _ in range(2 * (nodes - 1)):
            got = [[0.0, 0.0] for _ in range(nodes)]
            for segment in range(2):
                for node in range(nodes):
                    begun_s, sent_s = carry((node, "up"), had[node][segment])
                    after = (node + 1) % nodes
                    got[after][segment] = max(sent_s, carry((after, "down"), begun_s)[1]) + 0.0005
            had = got
        ready = [max(segments) for segments in had]
        ends.append(max(ready))
    looks = round(ends[-1] / LOOK_S) + 60
    carried = {
        (f"worker-{node}", direction): [
            bits * sum(min(1.0, max(0.0, (at * LOOK_S - begun_s) / (done_s - begun_s))) for begun_s, done_s in spans)
            for at in range(looks)
        ]
        for (node, direction), spans in sent.items()
    }  # fmt: skip
    return looked(
        carried,
        {
            (f"worker-{node}", direction): rates[node][direction == "down"]
            for node, direction in sent
        },
    ), ends


def looked(
    carried: dict[tuple[str, str], list[float]], rates: dict[tuple[str, str], float]
) -> list[dict[str, Any]]:
    """Records of bits that link directions have carried by each look, at so many Mbit/s."""
    return [
        LinkSample(
            link, direction, at * LOOK_S, (at + 5) * LOOK_S, rates[link, direction] * 5e6 * LOOK_S,
            round(bits[at + 5] - bits[at]), 0, 0, False, 0, LOOK_S,
            tuple(((at + look) * LOOK_S, round(bits[at + look] - bits[at])) for look in range(1, 5)),
        ).to_json()
        for (link, direction), bits in carried.items()
        for at in range(0, len(bits) - 5, 5)
    ]  # fmt: skip


def halves() -> list[dict[str, Any]]:
    """Records of DistributedDataParallel over gloo, 77 kB and hardly any computation, where worker-1 has 4 Mbit/s of 20:
    11 steps of 0.23 s, in each of which the others wait for it twice. Links of one flow carry the same."""
    flows = ((_FROM_0, ("worker-0", "up"), ("worker-2", "down")), (_FROM_1, ("worker-1", "up"), ("worker-0", "down")),
             (_FROM_2, ("worker-2", "up"), ("worker-1", "down")))  # fmt: skip
    carried = {
        end: [0.0] * 10
        + [800.0 * hundreds for hundreds in accumulate([0, *map(int, flow.split())])]
        for flow, *ends in flows
        for end in ends
    }
    for bits in carried.values():
        bits.extend(bits[-1:] * 15)
    return looked(carried, {end: 4.0 if end[0] == "worker-1" else 20.0 for end in carried})


# hundreds of bytes from look to look
_FROM_0 = """
        167 139 137 3 4 199 78 138 138 2 5 273 95 46 138 2 4 274 138 35 106 3 126 152 139
        137 3 4 212 64 138 138 2 5 273 110 31 138 2 5 274 138 50 91 3 140 137 139 137 3 4
        229 48 139 137 3 4 274 124 17 138 2 5 274 138 50 91 3 155 122 139 138 2 4 244 33 139
        137 3 5 274 138 3 138 2 5 274 138 65 76 3 140 137 139 138 3 4 259 20 137 137 3 4 274
        137 4 138 2 5 274 138 80 61 3 170 107 139 138 2 5 271 38 106 138 2
"""
_FROM_1 = """
        94 108 93 108 95 73 108 95 108 93 110 75 107 94 93 108 95 89 92 110 93 109 74 94 108
        93 109 94 75 107 94 108 93 111 74 107 94 108 93 95 89 92 110 93 109 74 109 94 94 108
        95 75 107 109 93 109 95 74 107 94 108 93 106 79 94 108 93 109 74 109 93 109 93 94 90
        92 109 93 109 95 74 109 107 93 93 106 79 109 93 108 94 75 108 93 108 92 110 75 108
        93 93 109 95 89 92 109 93 95 104 79 109 93 108 94 75 109 94 108 93 111 74 108 93 109
        93
"""
_FROM_2 = """
        95 109 93 93 89 93 109 94 109 88 93 94 95 108 94 73 107 110 94 108 94 73 107 94 110
        93 109 73 109 94 94 109 88 93 93 110 93 94 73 123 95 94 108 94 88 92 110 94 93 109
        73 109 94 109 93 89 92 93 110 93 109 58 122 95 94 108 94 88 92 110 94 109 93 88 93
        94 109 93 89 92 109 95 93 109 58 123 95 109 93 94 89 107 95 93 108 94 88 94 109 94
        93 89 92 108 95 109 93 74 107 95 109 93 109 73 107 95 94 109 93 88 93 109 94 94 88
"""
