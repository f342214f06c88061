"""Every modelled link direction's state, in arrays; how flows share links (weighted max-min
fairness); and what jitter and slots add. Pure.

A flow gets what its tightest link gives it: links divide what they have in proportion to the
weights (the congestion windows) of the flows that are not held up elsewhere, as a first-in
first-out queue does. A flow may have a limit of its own besides. (Bertsekas and Gallager, *Data
Networks*, 6.5.2.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from random import Random
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.scenario.link_state import (
    FRAME_BYTES,
    NONE,
    Impairments,
    LinkDirection,
    LinkState,
    route,
)

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_SLACK = 1 + 1e-12
_FEW_LINKS = 256
"""The most links of which all are computed, sooner than those that carry anything are found."""


class RateShares(NamedTuple):
    """``rate``: bit/s of every flow. ``tightest``: its tightest link; -1: its own limit."""

    rate: Floats
    tightest: Indices


def share(capacity: Floats, paths: Indices, weight: Floats, limit: Floats) -> RateShares:
    """Divide ``capacity`` (links,) in bit/s among flows.

    ``paths`` (flows, hops): indices of links; shorter ones are filled up with that of a link that
    never is a bottleneck (infinite capacity). ``weight``, ``limit`` (flows,): limits in bit/s, may
    be infinite.
    """
    if max(paths.size, _FEW_LINKS) < len(capacity):  # most links have nothing to carry
        used, numbers = np.unique(paths, return_inverse=True)
        shares = _fill(capacity[used], numbers.reshape(paths.shape), weight, limit)
        named = np.where(shares.tightest < 0, -1, used[shares.tightest])
        return RateShares(shares.rate, named)
    return _fill(capacity, paths, weight, limit)


def evened(weight: Floats, windowed: NDArray[np.bool_]) -> Floats:
    """Weights (flows,) that give flows without a window the average of those that have one."""
    mean = weight[windowed].mean() if windowed.any() else 1.0
    even: Floats = np.where(windowed, weight, mean)
    return even


def _fill(capacity: Floats, paths: Indices, weight: Floats, limit: Floats) -> RateShares:
    flows, hops = paths.shape
    rate, tightest = np.zeros(flows), np.full(flows, -1, np.int64)
    spare = capacity.astype(np.float64)
    open_, path, w, own = np.arange(flows), paths, weight, limit
    while True:
        load = np.bincount(path.ravel(), w.repeat(hops), len(spare))
        level = np.divide(spare, load, out=np.full(len(spare), np.inf), where=load > 0)
        offered = level[path]
        least = reduce(np.minimum, offered.T)  # hops are few: faster than offered.min(1)
        lowest = least.min()
        settled = own <= w * lowest  # these get all they want, whatever becomes of the others
        if len(rows := settled.nonzero()[0]):
            got = own[rows]
        else:
            settled = least <= lowest * _SLACK
            rows = settled.nonzero()[0]
            got = w[rows] * least[rows]
            tightest[open_[rows]] = path[rows, offered[rows].argmin(1)]
        rate[open_[rows]] = got
        if len(rows) == len(open_):
            return RateShares(rate, tightest)
        spare -= np.bincount(path[rows].ravel(), got.repeat(hops), len(spare))
        np.maximum(spare, 0.0, out=spare)
        left = ~settled
        open_, path, w, own = open_[left], path[left], w[left], own[left]


PACKET_BITS = 8.0 * FRAME_BYTES
"""Bits of a packet of full size."""

HOPS = 4
"""The longest route between two nodes: a node's link, its rack's, and the same at the other end."""


class Route(NamedTuple):
    """Numbers of the link directions between two nodes; filled up with the null link."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


class LinkArrays:
    """Link directions by number; the last number is a link that is no link: free, and never full.

    ``capacity`` bit/s of full frames, ``queue_bits``, ``delay_s``: as asked now. ``asked_bits``:
    the rate as the scenario writes it. ``carried_bits`` (of frames), ``delivered_bits`` (the
    overhead of each packet counted), ``drops`` (packets that found the queue full), ``lost``
    (packets that were lost behind it): since t0. ``own``: uplinks in their sender's stack, which
    sees how full they are; not so those of ``elsewhere``.
    """

    def __init__(
        self,
        initial: Mapping[LinkDirection, LinkState],
        racks: Mapping[str, Sequence[str]],
        elsewhere: Collection[str] = (),
    ) -> None:
        self.ends = list(initial)
        self.number = {end: number for number, end in enumerate(self.ends)}
        self.null_link = len(self.ends)
        count = self.null_link + 1
        self.capacity: Floats = np.full(count, np.inf)
        self.finite: Floats = np.zeros(count)
        """``capacity``, but 0 of the link that is none."""
        self.served_bits: Floats = np.zeros(count)
        """The integral of ``finite`` over time."""
        self.asked_bits: Floats = np.zeros(count)
        self.queue_bits: Floats = np.full(count, np.inf)
        self.delay_s: Floats = np.zeros(count)
        self.dropping: NDArray[np.bool_] = np.zeros(count, np.bool_)
        others = {*racks, *elsewhere}
        self.own: NDArray[np.bool_] = np.array(
            [*(end.direction == "up" and end.link not in others for end in self.ends), False]
        )
        self.charge: Floats = np.ones(count)
        """Bits that are charged for each bit of a full frame."""
        self.carried_bits: Floats = np.zeros(count)
        self.delivered_bits: Floats = np.zeros(count)
        self.queued_bits: Floats = np.zeros(count)
        self.largest_bits: Floats = np.zeros(count)
        self._wait_s: Floats | None = None
        """How long each queue is; None: not known since something changed."""
        self.drops: Indices = np.zeros(count, np.int64)
        self.lost: Indices = np.zeros(count, np.int64)
        self.impaired: dict[int, Impairments] = {}
        """Directions that do more to packets than delay them evenly."""
        self.impairments_used: set[Impairments] = set()
        """All that were asked for at any time."""
        self._rack = {node: rack for rack, members in racks.items() for node in members}
        self._routes: dict[tuple[str, str], Route] = {}
        for end, shape in initial.items():
            self.set(end, shape)

    def set(self, end: LinkDirection, shape: LinkState) -> None:
        """From now on ``end`` is as ``shape`` says."""
        number, impairments = self.number[end], shape.impairments
        self.asked_bits[number] = shape.rate_bits
        self.capacity[number] = shape.rate_bits * FRAME_BYTES / (FRAME_BYTES + shape.overhead_bytes)
        self.charge[number] = (FRAME_BYTES + shape.overhead_bytes) / FRAME_BYTES
        self.finite[number] = self.capacity[number]
        self.queue_bits[number] = 8.0 * shape.queue_bytes
        self.delay_s[number] = impairments.delay_ns / 1e9
        self.dropping[number] = shape.drop and not shape.rate_bits
        self._wait_s = None
        if impairments != NONE and impairments != Impairments(delay_ns=impairments.delay_ns):
            self.impaired[number] = impairments
            self.impairments_used.add(impairments)
        else:
            self.impaired.pop(number, None)

    def route(self, source: str, sink: str) -> Route:
        """The route from node ``source`` to node ``sink``."""
        if (source, sink) not in self._routes:
            forward, backward = self._hops(source, sink), self._hops(sink, source)
            self._routes[source, sink] = Route(forward, backward)
        return self._routes[source, sink]

    def tree(self, paths: Iterable[Route]) -> Route:
        """Every link of ``paths`` from one node to several, once, the sender's first."""
        links = dict.fromkeys(
            hop for path in paths for hop in path.forward if hop != self.null_link
        )
        nothing = (self.null_link,) * HOPS
        return Route((*links, *nothing[len(links) :]), nothing)

    def queue(self, bits: NDArray[Any]) -> None:
        """Set how much is queued at each link (links,), from now on."""
        self.queued_bits[:] = bits
        capped = np.minimum(bits, self.queue_bits)
        np.maximum(self.largest_bits, capped, out=self.largest_bits)
        self._wait_s = None

    def wait_s(self, hops: Indices) -> Floats:
        """How long the queues along ``hops`` (flows, hops) are, added up."""
        if self._wait_s is None:
            capped, serving = np.minimum(self.queued_bits, self.queue_bits), self.capacity > 0
            self._wait_s = np.divide(
                capped, self.capacity, out=np.zeros(len(capped)), where=serving
            )
        total: Floats = self._wait_s[hops].sum(1)
        return total

    def passable(self, path: Route) -> bool:
        """Return whether every link of ``path`` forward serves just now."""
        return bool((self.capacity[list(path.forward)] > 0).all())

    def round_trip_s(self, path: Route) -> float:
        """Return what the links of ``path`` take there and back, for one packet, just now."""
        both = [*path.forward, *path.backward]
        return self.one_way_s(both) + float(self.wait_s(np.array([both]))[0])

    def narrowest_bits(self, hops: Indices) -> Floats:
        """The narrowest capacity along ``hops`` (flows, hops) in bit/s; 1 in an outage."""
        least: Floats = np.maximum(self.capacity[hops].min(1), 1.0)
        return least

    def one_way_s(self, hops: Sequence[int]) -> float:
        """The constant delay along ``hops``."""
        return float(self.delay_s[list(hops)].sum())

    def _hops(self, source: str, sink: str) -> tuple[int, ...]:
        numbers = [self.number[end] for end in route(self._rack, source, sink)]
        return (*numbers, *[self.null_link] * (HOPS - len(numbers)))


_NORMAL = NormalDist()
_SHAPE = 3.0
"""Shape of the Pareto distribution whose tables come with netem."""


def extra_s(impairments: Impairments, packets: float, random: Random) -> float:
    """Return what the last of about ``packets`` packets that are under way together adds to the
    delay, in s.

    Packets stay in order, so the slowest of them holds up those behind it: its delay is drawn.
    """
    delay_s = 0.0
    if impairments.jitter_ns:
        level = random.random() ** (1 / max(1.0, packets))
        delay_s = (
            max(
                -impairments.delay_ns,
                impairments.jitter_ns * _quantile(impairments.distribution, level),
            )
            / 1e9
        )
    if impairments.slot is not None:
        delay_s += random.uniform(0.0, impairments.slot.longest_ns) / 1e9
    return delay_s


def _quantile(distribution: str, level: float) -> float:
    """Return a quantile of the jitter, in netem's units (half the width, or the deviation)."""
    level = min(max(level, 1e-9), 1 - 1e-9)
    if distribution == "uniform":
        return 2 * level - 1
    normal = _NORMAL.inv_cdf(level)
    if distribution == "normal":
        return normal
    pareto = _pareto(level)
    return pareto if distribution == "pareto" else 0.25 * normal + 0.75 * pareto


def _pareto(level: float) -> float:
    """With mean 0 and standard deviation 1."""
    mean = _SHAPE / (_SHAPE - 1)
    deviation = (_SHAPE / ((_SHAPE - 1) ** 2 * (_SHAPE - 2))) ** 0.5
    return (float((1 - level) ** (-1 / _SHAPE)) - mean) / float(deviation)
